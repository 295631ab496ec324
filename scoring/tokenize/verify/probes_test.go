package verify

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/probes.json anew; run testdata/record.py after it")

// recordedProbe is a probe in testdata/probes.json, for record.py.
type recordedProbe struct {
	Shape string          `json:"shape"`
	Body  json.RawMessage `json:"body"`
}

// TestProbesAreRecorded holds the probes to those that the engine was asked.
func TestProbesAreRecorded(t *testing.T) {
	var text bytes.Buffer
	text.WriteString("[\n")
	for i, p := range DefaultProbes() {
		if i > 0 {
			text.WriteString(",\n")
		}
		text.Write(mustMarshal(recordedProbe{p.Shape.String(), p.Body}))
	}
	text.WriteString("\n]\n")
	path := filepath.Join("testdata", "probes.json")
	if *rewrite {
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(recorded, text.Bytes()) {
		t.Error("testdata/probes.json is out of date: run go test -rewrite and testdata/record.py")
	}
}

func TestEveryShapeIsProbed(t *testing.T) {
	n := make(map[Shape]int)
	for _, p := range append(DefaultProbes(), MessagesProbes()...) {
		n[p.Shape]++
		if kind := p.Kind.String(); !strings.HasPrefix(p.Shape.String(), kind+"-") || !json.Valid(p.Body) {
			t.Errorf("a probe of the shape %v is a %v", p.Shape, kind)
		}
	}
	for _, s := range Shapes() {
		if n[s] < 2 {
			t.Errorf("the shape %v has %d probes, want two or more", s, n[s])
		}
	}
}
