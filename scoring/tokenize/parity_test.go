//go:build cgo && !notokenizers

package tokenize

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// parityRow is a request and what the engine's /tokenize made of it.
type parityRow struct {
	Name     string          `json:"name"`
	Request  json.RawMessage `json:"request"`
	TokenIDs []uint32        `json:"token_ids"`
	// Error is the status of a refusal, Detail the body that came with it.
	Error  int    `json:"error"`
	Detail string `json:"detail"`
}

func (r *parityRow) kind() Kind {
	var fields map[string]json.RawMessage
	if json.Unmarshal(r.Request, &fields) == nil && fields["prompt"] != nil {
		return Completion
	}
	return Chat
}

func readParity(t *testing.T, model string) []parityRow {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "parity", model+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []parityRow
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 24 {
		t.Fatalf("%s has %d rows, want 24", model, len(rows))
	}
	return rows
}

// TestParity compares every row with the ids the engine computed.
func TestParity(t *testing.T) {
	refusals := map[string]int{"qwen3": 0, "llama3_1": 0, "gemma3": 2}
	for model, refused := range refusals {
		t.Run(model, func(t *testing.T) {
			tok := load(t, model)
			for _, row := range readParity(t, model) {
				var got Prompts
				err := tok.Append(t.Context(), &got, row.kind(), row.Request)
				if row.TokenIDs == nil {
					refused--
					wantRejected(t, row, err)
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", row.Name, err)
					continue
				}
				if got.Len() != 1 || !slices.Equal(got.At(0), row.TokenIDs) {
					t.Errorf("%s: ids differ from the engine's:\n got %v\nwant %v", row.Name, got.IDs, row.TokenIDs)
				}
			}
			if refused != 0 {
				t.Errorf("%d more rows should have been refused", refused)
			}
		})
	}
}

// wantRejected checks that the template's words are the ones the engine gave.
func wantRejected(t *testing.T, row parityRow, err error) {
	t.Helper()
	var answer struct{ Error struct{ Message string } }
	if err := json.Unmarshal([]byte(row.Detail), &answer); err != nil || row.Error != 400 {
		t.Fatalf("%s: recorded refusal %d is not a 400 with a JSON body: %v", row.Name, row.Error, err)
	}
	var rejected *RenderError
	if !errors.As(err, &rejected) {
		t.Errorf("%s: got %v, want the template to reject it", row.Name, err)
		return
	}
	if rejected.Message != answer.Error.Message {
		t.Errorf("%s: message %q, the engine's was %q", row.Name, rejected.Message, answer.Error.Message)
	}
}

// TestParityCatchesAWrongTokenizer holds on to a known difference: the engine
// replaces the pre-tokenizer of deepseek_v3, so that tokenizer.json gives other
// ids for nearly every request. Comparing with /tokenize has to show it.
func TestParityCatchesAWrongTokenizer(t *testing.T) {
	tok := load(t, "deepseek_v3")
	equal := map[Kind]int{}
	for _, row := range readParity(t, "deepseek_v3") {
		var got Prompts
		if err := tok.Append(t.Context(), &got, row.kind(), row.Request); err != nil {
			t.Errorf("%s: %v", row.Name, err)
			continue
		}
		if slices.Equal(got.At(0), row.TokenIDs) {
			equal[row.kind()]++
		}
	}
	if equal[Chat] != 4 || equal[Completion] != 0 {
		t.Errorf("%d chat and %d completions rows agree with the engine, want 4 and 0", equal[Chat], equal[Completion])
	}
}
