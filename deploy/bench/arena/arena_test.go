package main

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
	"github.com/sluicegate/sluice/scoring/simworker/model"
)

func testWords(t *testing.T) words {
	t.Helper()
	w, err := rig.NewWords(model.FS, modelName)
	if err != nil {
		t.Fatal(err)
	}
	return words{w}
}

func testTrace(t *testing.T) []traceRow {
	t.Helper()
	var sb strings.Builder
	for i := range 200 {
		fmt.Fprintf(&sb, `{"timestamp":%d,"input_length":1100,"output_length":40,"hash_ids":[0,%d,%d]}`+"\n", i*1000, i/2+1, i+1000)
	}
	name := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(name, []byte(sb.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := readTrace(name)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Every router gets the same requests: a workload depends on its seed alone,
// comes in order, and at the rate that was asked for.
func TestWorkloads(t *testing.T) {
	for name, w := range newWorkloads(testWords(t), testTrace(t)) {
		const rate, length = 40.0, 4 * time.Second
		a, b := w.generate(rate, length, 7), w.generate(rate, length, 7)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: the same seed gave other requests", name)
		}
		if n := float64(len(a)); math.Abs(n-rate*length.Seconds()) > 0.5*rate*length.Seconds() {
			t.Errorf("%s: %v requests in %v, want about %v", name, n, length, rate*length.Seconds())
		}
		if !slices.IsSortedFunc(a, func(x, y request) int { return int(x.at - y.at) }) {
			t.Errorf("%s: requests are not in order", name)
		}
		for _, r := range a {
			if r.prompt+r.output > w.maxModelLen || r.output < 1 {
				t.Fatalf("%s: a request of %d and %d tokens does not fit into %d", name, r.prompt, r.output, w.maxModelLen)
			}
		}
		if name == "trace" {
			continue // has no seed
		}
		if other := w.generate(rate, length, 8); reflect.DeepEqual(a, other) {
			t.Errorf("%s: another seed gave the same requests", name)
		}
	}
}

// Requests of one group of the trace begin with the same text.
func TestTracePrefixes(t *testing.T) {
	rows := testTrace(t)
	out := testWords(t).trace(rows, 50, 2*time.Second)
	if len(out) != 100 {
		t.Fatalf("%d requests, want 100", len(out))
	}
	common := func(a, b []byte) int {
		n := 0
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	for i := 0; i+2 < len(out); i += 2 {
		same, other := common(out[i].body, out[i+1].body), common(out[i].body, out[i+2].body)
		if out[i].group != out[i+1].group || out[i].group == out[i+2].group || same <= other {
			t.Errorf("request %d shares %d bytes with its group and %d with the next one", i, same, other)
		}
	}
	if last := out[99].at; last < 1900*time.Millisecond || last > 2100*time.Millisecond {
		t.Errorf("the last request comes at %v, want about 2s", last)
	}
}

func TestReadTraceErrors(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		name := filepath.Join(t.TempDir(), "trace")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTrace(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	f("{", "line 1")
	f(`{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[1]}`, "513 tokens in 1 blocks")
	f(`{"timestamp":0,"input_length":0,"output_length":1,"hash_ids":[]}`, "0 tokens")
}

func TestSlowStart(t *testing.T) {
	in := []request{{at: 0}, {at: 4 * time.Second}, {at: 5 * time.Second}, {at: 7 * time.Second}}
	var got []time.Duration
	for _, r := range slowStart(in, 10*time.Second) {
		got = append(got, r.at)
	}
	if want := []time.Duration{0, 8 * time.Second, 10 * time.Second, 12 * time.Second}; !slices.Equal(got, want) {
		t.Errorf("times %v, want %v", got, want)
	}
}

// Groups stay whole, and a worker that is three times slower gets a third.
func TestDeal(t *testing.T) {
	var in []request
	for i := range 400 {
		in = append(in, request{group: i % 40, prompt: 100})
	}
	shares := deal(in, []float64{1.0 / 3, 1, 1})
	owner := make(map[int]int)
	for i, s := range shares {
		for _, r := range s {
			if o, ok := owner[r.group]; ok && o != i {
				t.Fatalf("group %d is split", r.group)
			}
			owner[r.group] = i
		}
	}
	if a, b, c := len(shares[0]), len(shares[1]), len(shares[2]); a+b+c != 400 || a > 70 || a < 40 || b-c > 20 || c-b > 20 {
		t.Errorf("%d, %d and %d requests", a, b, c)
	}
}

// stream answers with a role, two tokens and an end.
func stream(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch {
	case strings.Contains(string(body), "refuse"):
		http.Error(rw, "no", http.StatusServiceUnavailable)
	case strings.Contains(string(body), "cut"):
		_, _ = io.WriteString(rw, `data: {"choices":[{"delta":{"content":"a"}}]}`+"\n\n")
	default:
		_, _ = io.WriteString(rw, `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}`+"\n\n")
		_ = http.NewResponseController(rw).Flush()
		time.Sleep(20 * time.Millisecond)
		_, _ = io.WriteString(rw, `data: {"choices":[{"delta":{"content":"a"}}]}`+"\n\ndata: [DONE]\n\n")
	}
}

func TestOpenLoop(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(stream))
	defer srv.Close()
	s := rig.NewSender(srv.URL)
	defer s.Close()
	in := []request{
		{at: 0, body: []byte("ok")}, {at: 10 * time.Millisecond, body: []byte("refuse")},
		{at: 20 * time.Millisecond, body: []byte("cut")}, {at: 30 * time.Millisecond, body: []byte("ok")},
	}
	called := make(chan struct{})
	out := openLoop(t.Context(), s, "key", in, time.Millisecond, func() { close(called) })
	<-called
	for i, o := range out {
		if o.At != in[i].at || o.Total < o.First || o.First <= 0 {
			t.Errorf("outcome %d: %+v", i, o)
		}
	}
	for _, i := range []int{0, 3} {
		// The event with the role is not the first token.
		if o := out[i]; o.Err != nil || !o.Got || o.First < 20*time.Millisecond {
			t.Errorf("outcome %d: %+v, want a first token after 20ms", i, o)
		}
	}
	if out[1].Err == nil || !strings.Contains(out[1].Err.Error(), "status 503") || out[1].Got {
		t.Errorf("a refused request: %+v", out[1])
	}
	if out[2].Err == nil || !out[2].Got {
		t.Errorf("a cut stream: %+v", out[2])
	}
}

func TestClosedLoop(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(stream))
	defer srv.Close()
	s := rig.NewSender(srv.URL)
	defer s.Close()
	rate, err := closedLoop(t.Context(), []*rig.Sender{s}, [][]request{{{body: []byte("ok")}}}, 2, 50*time.Millisecond, time.Second)
	if err != nil || rate <= 0 || rate > 100 {
		t.Errorf("%v requests/s, %v; two streams of 20ms give less than 100", rate, err)
	}
	if _, err := closedLoop(t.Context(), []*rig.Sender{s}, [][]request{{{body: []byte("refuse")}}}, 1, 0, 10*time.Second); err == nil {
		t.Error("a refused request did not fail the capacity run")
	}
}

func TestQuantilesAndTable(t *testing.T) {
	var d []time.Duration
	for i := range 101 {
		d = append(d, time.Duration(100-i)*time.Millisecond)
	}
	if got, want := quantiles(d), (quantile{50, 50, 90, 99, 100}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := quantiles(nil); got != (quantile{}) {
		t.Errorf("of nothing: %+v", got)
	}
	row := func(router string, mean float64) *result {
		return &result{Workload: "mixed", Load: 80, Router: router, TTFT: quantile{Mean: mean, P90: 2 * mean}, Computed: 10, PerWorker: []int{1, 3}, MachineCores: 2}
	}
	var sb strings.Builder
	writeTable(&sb, cells([]*result{row("sluice", 60), row("sluice-round-robin", 1), row("other", 100), row("third", 120), row("sluice", 80)}))
	for _, want := range []string{"| sluice | 70 (60-80) |", "1.50x", "mean 0.70x (other), p90 0.70x (other)"} {
		if !strings.Contains(sb.String(), want) {
			t.Errorf("no %q in\n%s", want, sb.String())
		}
	}
}

func TestPlanErrors(t *testing.T) {
	for args, want := range map[string]string{
		"-routers nginx":                   `there is no router "nginx"`,
		"-workloads none":                  `there is no workload "none"`,
		"-loads 0":                         `"0" is no percentage`,
		"-workloads mixed -capacity mixed": `"mixed" is not WORKLOAD=REQUESTS`,
		"-reps 0":                          "must be above 0",
		"-workloads mixed more":            `unexpected argument "more"`,
		"-workloads trace -trace /none":    "cannot read the trace",
	} {
		if _, err := parsePlan(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	p, err := parsePlan(strings.Fields("-workloads mixed,slow -routers sluice -capacity slow=12.5 -loads 80"))
	if err != nil || len(p.workloads) != 2 || p.capacity["slow"] != 12.5 || !slices.Equal(p.loads, []int{80}) {
		t.Errorf("plan %+v, %v", p, err)
	}
}
