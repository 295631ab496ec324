//go:build cgo && !notokenizers

package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

// models are those whose ids a real engine was asked for. What their files say
// is what the engine does, but for deepseek_v3: its tokenizer class replaces the
// pre-tokenizer.
var models = []string{"qwen3", "llama3_1", "gemma3", "deepseek_v3"}

func TestMain(m *testing.M) {
	cmd := exec.Command("bash", filepath.Join("..", "testdata", "fetch.sh"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot fetch tokenizer files with ../testdata/fetch.sh: %v\n", err)
		os.Exit(1)
	}
	code := m.Run()
	for _, tok := range loaded.byModel {
		_ = tok.Close()
	}
	os.Exit(code)
}

func readJSON(t *testing.T, v any, path ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v: %v", path, err)
	}
}

// answers are an engine's recorded answers by body: ids, or nil for a refusal.
type answers map[string][][]uint32

// source answers as recorded, and as otherwise does what was not recorded.
func (a answers) source(otherwise Source) Source {
	return func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
		prompts, ok := a[string(body)]
		switch {
		case !ok:
			return otherwise(ctx, dst, kind, body)
		case prompts == nil:
			return &tokenize.StatusError{Code: 400}
		}
		for _, ids := range prompts {
			dst.IDs = append(dst.IDs, ids...)
			dst.Ends = append(dst.Ends, len(dst.IDs))
		}
		return nil
	}
}

func noAnswer(context.Context, *tokenize.Prompts, tokenize.Kind, []byte) error {
	return &tokenize.StatusError{Code: 500}
}

// asEngine refuses what a tokenizer rejects as a worker would.
func asEngine(local Source) Source {
	return func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
		err := local(ctx, dst, kind, body)
		if _, ok := errors.AsType[*tokenize.RenderError](err); ok {
			return &tokenize.StatusError{Code: 400}
		}
		return err
	}
}

// loaded holds one tokenizer for each model, for all tests: loading takes a
// second or more.
var loaded = struct {
	mu      sync.Mutex
	byModel map[string]*tokenize.Tokenizer
}{byModel: make(map[string]*tokenize.Tokenizer)}

func load(t *testing.T, model string) Source {
	t.Helper()
	loaded.mu.Lock()
	defer loaded.mu.Unlock()
	tok := loaded.byModel[model]
	if tok == nil {
		var err error
		if tok, err = tokenize.Load(filepath.Join("..", "..", "..", ".cache", "tokenizers", model), tokenize.Options{}); err != nil {
			t.Fatal(err)
		}
		loaded.byModel[model] = tok
	}
	return tok.Append
}

// TestProbesTellRealModelsApart puts the probes to what a real engine's code
// made of them: three models are verified in every shape, and deepseek_v3 in
// none.
func TestProbesTellRealModelsApart(t *testing.T) {
	for _, model := range models {
		t.Run(model, func(t *testing.T) {
			var recorded [][][]uint32
			readJSON(t, &recorded, "testdata", "engine", model+".json")
			probes, engine := DefaultProbes(), answers{}
			if len(recorded) != len(probes) {
				t.Fatalf("%d answers are recorded for %d probes; run testdata/record.py", len(recorded), len(probes))
			}
			for i := range probes {
				engine[string(probes[i].Body)] = recorded[i]
			}
			c, _ := newChecker(load(t, model), []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: engine.source(noAnswer)}}, 0)
			c.probeAll(t.Context())
			want := Verified
			if model == "deepseek_v3" {
				want = Mismatch
			}
			for _, s := range c.Status().Shapes {
				if s.State != want || s.Undecided != 0 {
					t.Errorf("%v is %v after %d probes with %d undecided, want %v", s.Shape, s.State, s.Probes, s.Undecided, want)
				}
			}
		})
	}
}

// parityShapes are the shapes of the recorded requests.
var parityShapes = map[string]Shape{
	"one_user": ChatPlain, "system_user": ChatSystem, "multi_turn": ChatTurns, "unicode": ChatPlain, "whitespace": ChatPlain,
	"empty_system": ChatSystem, "blank_user": ChatPlain, "parts_text": ChatParts, "parts_single": ChatParts, "tools": ChatTools,
	"tools_system": ChatTools, "tool_call_history": ChatToolCalls, "tool_call_no_content": ChatToolCalls, "special_text": ChatPlain,
	"html": ChatPlain, "code": ChatPlain, "numbers": ChatPlain, "no_gen_prompt": ChatContinue, "thinking_off": ChatKwargs, "long_4k": ChatPlain,
	"completion": CompletionText, "completion_unicode": CompletionText, "completion_special": CompletionText, "completion_no_special": CompletionText,
}

// TestSamplesCatchWhatProbesDoNot gives all models an engine that agrees with
// every probe and with the requests that happen to be equal, and then the
// requests that a real /tokenize answered: each shape that holds one with other
// ids is set aside, at that request, and no other shape is.
func TestSamplesCatchWhatProbesDoNot(t *testing.T) {
	for _, model := range models {
		t.Run(model, func(t *testing.T) {
			local := load(t, model)
			var rows []struct {
				Name     string          `json:"name"`
				Request  json.RawMessage `json:"request"`
				TokenIDs []uint32        `json:"token_ids"`
			}
			readJSON(t, &rows, "..", "testdata", "parity", model+".json")
			engine, different := answers{}, map[string]bool{}
			equal := func(name string) int { // those that agree go first
				if different[name] {
					return 1
				}
				return 0
			}
			for _, row := range rows {
				if row.TokenIDs == nil {
					continue // refused by both
				}
				engine[string(row.Request)] = [][]uint32{row.TokenIDs}
				var got tokenize.Prompts
				if err := local(t.Context(), &got, kindOf(parityShapes[row.Name]), row.Request); err != nil {
					t.Fatal(err)
				}
				different[row.Name] = !slices.Equal(got.IDs, row.TokenIDs)
			}
			slices.SortStableFunc(rows, func(a, b struct {
				Name     string          `json:"name"`
				Request  json.RawMessage `json:"request"`
				TokenIDs []uint32        `json:"token_ids"`
			}) int {
				return equal(a.Name) - equal(b.Name)
			})
			synctest.Test(t, func(t *testing.T) {
				c, log := newChecker(local, []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: engine.source(asEngine(local))}}, 1)
				defer run(t, c)()
				synctest.Wait()
				want := [shapes]State{}
				for i := range want {
					want[i] = Verified
				}
				disagreed := 0
				for _, row := range rows {
					shape := parityShapes[row.Name]
					if row.TokenIDs == nil || !c.Trusts(shape) {
						continue
					}
					var got tokenize.Prompts
					if err := local(t.Context(), &got, kindOf(shape), row.Request); err != nil {
						t.Fatal(err)
					}
					time.Sleep(samplePause)
					c.Offer(shape, kindOf(shape), row.Request, []string{"p"})
					synctest.Wait()
					if different[row.Name] {
						want[shape] = Mismatch
						disagreed++
					}
					if s := c.Status().Shapes[shape]; s.State != want[shape] || s.Samples == 0 {
						t.Errorf("after %s %v is %v with %d samples, want %v", row.Name, shape, s.State, s.Samples, want[shape])
					}
				}
				for i, s := range c.Status().Shapes {
					if s.State != want[i] {
						t.Errorf("in the end %v is %v, want %v", s.Shape, s.State, want[i])
					}
				}
				if (model == "deepseek_v3") != (disagreed > 0) || disagreed != log.count("disagrees") {
					t.Errorf("%d shapes disagree and the log tells of %d", disagreed, log.count("disagrees"))
				}
			})
		})
	}
}

func kindOf(s Shape) tokenize.Kind {
	if s == CompletionText || s == CompletionTexts {
		return tokenize.Completion
	}
	return tokenize.Chat
}
