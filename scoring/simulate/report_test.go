package simulate

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew from what the code does")

// TestGolden pins what a run of a real trace's beginning comes to. It uses the
// strategies that do not depend on the router's predictions, which are tuned
// apart from this package.
func TestGolden(t *testing.T) {
	plan := readConversation(t, 60)
	plan.Hurry(8)
	cfg := DefaultConfig()
	cfg.Workers, cfg.Engine, cfg.Warmup = 3, Profiles[1].Engine, 5
	r := Report{Workload: plan.Name, Requests: len(plan.Requests), Workers: cfg.Workers, Seed: cfg.Seed, Objective: 2000}
	for _, name := range []string{"round-robin", "oracle"} {
		s, err := ParseStrategy(name)
		if err != nil {
			t.Fatal(err)
		}
		res, err := Run(&cfg, plan, s)
		if err != nil {
			t.Fatal(err)
		}
		res.ErrorP50, res.ErrorP90 = 0, 0
		r.Results = append(r.Results, res)
	}
	for file, write := range map[string]func(io.Writer) error{
		"golden.json": r.WriteJSON, "golden.txt": r.WriteTable, "golden.svg": r.WriteSVG,
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		path := "testdata/" + file
		if *rewrite {
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s differs (run with -rewrite to make it anew):\n%s", path, b.Bytes())
		}
	}
}

// sampleReport is a report of two strategies, one without any request.
func sampleReport() *Report {
	samples := []Sample{{TTFT: time.Hour}, {TTFT: 3 * time.Millisecond}, {TTFT: 2 * time.Second}, {TTFT: 40 * time.Millisecond}}
	return &Report{
		Workload: `<a> & "b"`, Requests: 4, Workers: 1, Objective: 100,
		Results: []*Result{{Strategy: "x<y&z", Requests: 3, Samples: samples}, {Strategy: "none"}},
	}
}

// TestSVGIsXML parses the plot and finds the texts in it.
func TestSVGIsXML(t *testing.T) {
	for name, r := range map[string]*Report{"sample": sampleReport(), "empty": {}} {
		var b bytes.Buffer
		if err := r.WriteSVG(&b); err != nil {
			t.Fatal(err)
		}
		texts, curves := readSVG(t, b.String())
		if name == "empty" {
			continue
		}
		for _, want := range []string{`<a> & "b": 4 requests on 1 worker`, "x<y&z", "none", "objective", "1 ms", "10 s", "100%"} {
			if !strings.Contains(texts, want+"\n") {
				t.Errorf("the plot lacks the text %q; it has:\n%s", want, texts)
			}
		}
		if curves != 1 {
			t.Errorf("%d curves, want one: the other strategy has no requests", curves)
		}
		if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
			t.Error("the plot has coordinates that are no numbers")
		}
	}
}

func readSVG(t *testing.T, svg string) (texts string, curves int) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	var b strings.Builder
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String(), curves
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg)
		}
		switch tok := tok.(type) {
		case xml.CharData:
			if s := strings.TrimSpace(string(tok)); s != "" {
				b.WriteString(s + "\n")
			}
		case xml.StartElement:
			if tok.Name.Local == "polyline" {
				curves++
			}
		}
	}
}

func TestJSONNames(t *testing.T) {
	var b bytes.Buffer
	if err := sampleReport().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Workload   string
		Strategies []map[string]json.RawMessage
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Workload != `<a> & "b"` || len(got.Strategies) != 2 {
		t.Fatalf("got %s", b.Bytes())
	}
	for _, name := range []string{"strategy", "ttft_ms", "e2e_ms", "goodput_rps", "hit_ratio", "prompt_tokens_computed", "prediction_error_p50", "prediction_error_p90", "workers"} {
		if _, ok := got.Strategies[0][name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestTimes(t *testing.T) {
	var d []time.Duration
	for i := range 100 {
		d = append(d, time.Duration(100-i)*time.Millisecond)
	}
	if got, want := times(d), (Times{Mean: 50.5, P50: 50, P90: 90, P99: 99, Max: 100}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := times(nil); got != (Times{}) {
		t.Errorf("of nothing: %+v", got)
	}
	if got := times([]time.Duration{time.Millisecond}); got != (Times{1, 1, 1, 1, 1}) {
		t.Errorf("of one: %+v", got)
	}
}

func TestSpan(t *testing.T) {
	for ms, want := range map[float64]string{
		0: "0.0 ms", 99.94: "99.9 ms", 99.95: "100 ms", 999.4: "999 ms", 999.5: "1.00 s", 9994: "9.99 s", 9995: "10.0 s", 99949: "99.9 s", 99950: "100 s",
	} {
		if got := span(ms); got != want {
			t.Errorf("%v ms is shown as %s, want %s", ms, got, want)
		}
	}
}
