//go:build cgo && !notokenizers

package tokenize

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestEngine compares rendered prompts with those of the engine's own code, for
// bodies and templates chosen to be awkward (testdata/cases.json). What the
// engine refuses must be refused; what it renders must be rendered the same, or
// be left to it with ErrUnsupported where the case is listed below.
func TestEngine(t *testing.T) {
	left := map[string]bool{}
	for _, name := range leftToTheEngine {
		left[name] = true
	}
	templates, cases := readCases(t)
	loaded := map[string]*Tokenizer{}
	for _, c := range cases {
		key := c.Template + string(c.Defaults)
		tok := loaded[key]
		if tok == nil {
			opts := Options{ChatTemplate: templates[c.Template], TemplateKwargs: c.Defaults, CacheBytes: 1 << 20}
			var err error
			if tok, err = LoadFS(smallModel(t), opts); err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			defer tok.Close()
			loaded[key] = tok
		}
		t.Run(c.Name, func(t *testing.T) {
			got, err := tok.Explain(Chat, c.Body)
			switch {
			case c.Want == nil && err == nil:
				t.Errorf("rendered what the engine refuses: %q", got.Prompts[0].Text)
			case c.Want == nil:
			case left[c.Name]:
				if !errors.Is(err, ErrUnsupported) {
					t.Errorf("got %v, want it left to the engine", err)
				}
			case err != nil:
				t.Errorf("%v, the engine renders %q", err, *c.Want)
			case got.Prompts[0].Text != *c.Want:
				t.Errorf("rendered differently:\n got %q\nwant %q", got.Prompts[0].Text, *c.Want)
			}
		})
	}
}

// leftToTheEngine lists cases that cannot be rendered exactly here and say so.
var leftToTheEngine = []string{
	// A part whose text is null stays in the list that the template sees.
	"parts: thinking",
	// Python reads these in ways that the native reader does not.
	"arguments beyond 64 bits",
	"arguments not a number",
	"arguments overflow",
	"arguments minus zero",
	// A list is printed with a character that Python escapes by tables of its own.
	"methods 7",
}

type engineCase struct {
	Name     string          `json:"name"`
	Template string          `json:"template"`
	Defaults json.RawMessage `json:"defaults"`
	Body     json.RawMessage `json:"body"`
	// Want is the engine's text, nil when it refuses the body.
	Want *string
}

func readCases(t *testing.T) (templates map[string]string, cases []engineCase) {
	t.Helper()
	var in struct {
		Templates map[string]string `json:"templates"`
		Cases     []engineCase      `json:"cases"`
	}
	readJSON(t, "cases.json", &in)
	var recorded []struct {
		Name string  `json:"name"`
		Text *string `json:"text"`
	}
	readJSON(t, "engine.json", &recorded)
	if len(recorded) != len(in.Cases) || len(recorded) == 0 {
		t.Fatalf("%d cases and %d recordings; run testdata/record.py", len(in.Cases), len(recorded))
	}
	for i := range in.Cases {
		if recorded[i].Name != in.Cases[i].Name {
			t.Fatalf("case %d is %q and was recorded as %q", i, in.Cases[i].Name, recorded[i].Name)
		}
		in.Cases[i].Want = recorded[i].Text
	}
	return in.Templates, in.Cases
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
