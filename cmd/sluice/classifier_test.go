package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/policy/classify"
)

// noCards refuses what holds labels of detectors, or could not be judged.
const noCards = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: content }
spec:
  validations:
    - { name: no-cards, expression: "!('pci' in content.labels)", message: payment cards are not for this model }
    - { name: no-people, expression: "!('people' in content.labels)", message: names are not for this model }
    - { name: judged, expression: "content.scan_status == 'complete'", message: the content could not be judged }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: content }
spec: { policyName: content, actions: [Deny], selector: { tenants: [globex] } }
`

// card is a published test number.
const card = "4111 1111 1111 1111"

// detector is a server with Presidio's /analyze that finds the word Ada.
type detector struct {
	*httptest.Server
	failing atomic.Bool
	asked   atomic.Int64
	bearer  atomic.Value
}

func newDetector(t *testing.T) *detector {
	t.Helper()
	d := &detector{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.asked.Add(1)
		d.bearer.Store(r.Header.Get("Authorization"))
		var q struct{ Text string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.URL.Path != "/analyze" || d.failing.Load() {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		found := "[]"
		if at := strings.Index(q.Text, "Ada"); at >= 0 {
			found = fmt.Sprintf(`[{"entity_type":"PERSON","start":%d,"end":%d,"score":0.9},{"entity_type":"DATE_TIME","start":0,"end":1,"score":0.9}]`, at, at+3)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, found)
	}))
	t.Cleanup(d.Close)
	return d
}

// Detectors that are configured judge every body that a policy asks about: built-in ones and ones that are
// asked over HTTP, whose failure the policy sees. What they find is counted, also across a reload.
func TestDetectorsReachPolicies(t *testing.T) {
	server := newDetector(t)
	labels := fmt.Sprintf(`labels:
  detectors: { payment-card: pci }
  timeout: 5s
  external:
    - { name: presidio, shape: presidio, url: "%s", labels: { PERSON: people }, timeout: 5s, apiKeyFile: detector.key }
`, server.URL)
	r := startReloading(t, unwatched, func(dir string) {
		editConfig(dir, labels)
		write(t, dir, map[string]string{"policies/content.yaml": noCards, "detector.key": "sesame\n"})
	})
	say := func(text string) (int, string) {
		t.Helper()
		got, err := r.tour.ask(t.Context(), "globex", user(text))
		if err != nil {
			t.Fatal(err)
		}
		_, rule, _ := strings.Cut(got.header.Get("x-sluice-policy"), " ")
		return got.status, rule
	}
	for _, c := range []struct {
		text   string
		status int
		rule   string
	}{
		{"hello", 200, ""},
		{"my card is " + card, 403, "content/no-cards"},
		{"my card is 4111 1111 1111 1112", 200, ""},
		{"ask Ada", 403, "content/no-people"},
	} {
		if status, rule := say(c.text); status != c.status || rule != c.rule {
			t.Errorf("%q: %d %q, want %d %q", c.text, status, rule, c.status, c.rule)
		}
	}
	if got := server.bearer.Load(); got != "Bearer sesame" {
		t.Errorf("the detector was sent %q", got)
	}
	server.failing.Store(true)
	if status, rule := say("hello"); status != 403 || rule != "content/judged" {
		t.Errorf("with a failing detector: %d %q", status, rule)
	}
	server.failing.Store(false)
	counted := []string{
		`sluice_content_scans_total{status="complete"} 4`, `sluice_content_scans_total{status="unavailable"} 1`,
		`sluice_content_findings_total{label="pci"} 1`, `sluice_content_findings_total{label="people"} 1`,
		`sluice_content_unmapped_findings_total{detector="presidio"} 1`,
		`sluice_content_detector_failures_total{detector="presidio",reason="error"} 1`,
		`sluice_content_detector_failures_total{detector="presidio",reason="timeout"} 0`,
	}
	r.wantMetrics(counted...)

	before := r.a.reloads.generation().docs.scanner
	if status, page := r.reload(); status != 200 {
		t.Fatalf("%d %+v", status, page)
	}
	if r.a.reloads.generation().docs.scanner != before {
		t.Error("detectors were made anew although nothing has changed")
	}
	edit(t, filepath.Join(r.d.dir, "sluice.yaml"), "{ payment-card: pci }", "{ payment-card: pci, email: mail }")
	if status, page := r.reload(); status != 200 {
		t.Fatalf("%d %+v", status, page)
	}
	after := r.a.reloads.generation().docs.scanner
	if after == before || after.external[0] != before.external[0] {
		t.Error("the detector that has not changed was made anew, or the rest was not")
	}
	r.wantMetrics(append(counted, `sluice_content_findings_total{label="mail"} 0`)...)
	write(t, r.d.dir, map[string]string{"detector.key": "other\n"})
	edit(t, filepath.Join(r.d.dir, "sluice.yaml"), "payment-card: pci, ", "")
	if status, page := r.reload(); status != 200 {
		t.Fatalf("%d %+v", status, page)
	}
	if status, rule := say("card " + card); status != 200 {
		t.Errorf("without the detector of cards: %d %q", status, rule)
	}
	if got := server.bearer.Load(); got != "Bearer other" {
		t.Errorf("the detector was sent %q, want the key of now", got)
	}
	if text := metricsText(t, r.a); strings.Contains(text, `label="pci"`) || !strings.Contains(text, `sluice_content_findings_total{label="people"} 1`) {
		t.Error("a label that is gone has a series still, or one that stays has lost its count")
	}
	if log := r.log.String(); strings.Contains(log, "4111") || strings.Contains(log, "Ada") || strings.Contains(log, "sesame") {
		t.Error("the log holds text of a prompt or a key")
	}
}

// Without a detector nothing is scanned, and policies see that.
func TestWithoutDetectors(t *testing.T) {
	r := startReloading(t, unwatched, func(dir string) {
		write(t, dir, map[string]string{"policies/content.yaml": noCards})
	})
	if status, _ := r.ask("globex"); status != 403 {
		t.Errorf("got %d, want the refusal of what could not be judged", status)
	}
	if text := metricsText(t, r.a); strings.Contains(text, "sluice_content_scans_total") {
		t.Error("scans are counted although there are none")
	}
}

// Totals of a scanner and of those before it add up, and forget what is configured no more.
func TestScannerStats(t *testing.T) {
	cfg := &LabelsConfig{
		Detectors: map[string]string{"email": "mail"},
		External:  []ExternalLabelConfig{{Name: "stays", Labels: map[string]string{"a": "people", "b": ""}}},
	}
	var total classify.Stats
	for range 2 {
		addStats(&total, classify.Stats{
			Bytes: 3, Scans: map[string]uint64{"complete": 1}, Hits: map[string]uint64{"mail": 1, "gone": 1, "people": 2},
			Failures: map[string]uint64{"stays": 1, "left": 1}, Timeouts: map[string]uint64{"left": 1}, Unmapped: map[string]uint64{"stays": 4},
		})
	}
	keepStats(&total, cfg)
	got, want := fmt.Sprint(total), fmt.Sprint(classify.Stats{
		Bytes: 6, Scans: map[string]uint64{"complete": 2}, Hits: map[string]uint64{"mail": 2, "people": 4},
		Failures: map[string]uint64{"stays": 2}, Timeouts: map[string]uint64{}, Unmapped: map[string]uint64{"stays": 8},
	})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var none *scanner
	if got := none.stats(); got.Bytes != 0 || len(got.Scans) != 0 {
		t.Errorf("no scanner has scanned %+v", got)
	}
}

// The claim that holds labels reaches the gateway with the generation.
// What the scanner before this one still counts, of requests that it began, stays counted: a counter that goes
// down looks like a restart, and everything as if it had happened since.
func TestScannerCountersNeverGoDown(t *testing.T) {
	var current *scanner
	seen := uint64(0)
	scan := func(s *scanner) {
		s.Classify(t.Context(), &gateway.ClassifyRequest{Body: []byte(`{"prompt":"hello"}`)})
	}
	for i := range 4 {
		c := defaultLabels()
		c.Detectors = map[string]string{"email": fmt.Sprintf("label-%d", i)}
		fresh, err := newScanner(&c, current, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*scanner{current, fresh} {
			if s != nil {
				scan(s)
				seen++
			}
			if s == current {
				current = fresh // from here on it is the one that is asked
			}
		}
		if got := current.stats().Scans["complete"]; got != seen {
			t.Errorf("after reload %d: %d scans, want %d", i, got, seen)
		}
	}
	if current.old.old != nil {
		t.Error("scanners of long ago are kept")
	}
}

func TestLabelClaimReachesTheGateway(t *testing.T) {
	cfg, _, err := LoadConfig("testdata/script/files/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Labels.Claim, cfg.Labels.Detectors = "labels", map[string]string{"email": "pii"}
	base, err := newLasting(cfg, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := base.generation(cfg, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if g.state.LabelClaim != "labels" || g.state.Classifier == nil {
		t.Errorf("claim %q, classifier %v", g.state.LabelClaim, g.state.Classifier)
	}
}
