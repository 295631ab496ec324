package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// What became of a request's target: the first token decides where there was one, whoever is at fault where
// there was none.
func TestClassResults(t *testing.T) {
	const target = 2 * time.Second
	for _, c := range []struct {
		name    string
		row     tenancy.Row
		first   time.Duration
		refused string
		want    string
	}{
		{"in time", tenancy.Row{Status: 200, Outcome: tenancy.OutcomeCompleted}, target, "", "met"},
		{"late", tenancy.Row{Status: 200, Outcome: tenancy.OutcomeCompleted}, target + 1, "", "missed"},
		{"in one piece, nothing known", tenancy.Row{Status: 200, Outcome: tenancy.OutcomeCompleted}, 0, "", "unmeasured"},
		{"left after the first token", tenancy.Row{Status: 499, Outcome: tenancy.OutcomeClientAborted}, time.Second, "", "met"},
		{"left before the target", tenancy.Row{Status: 499, Outcome: tenancy.OutcomeClientAborted, Duration: target}, 0, "", "unmeasured"},
		{"left after the target", tenancy.Row{Status: 499, Outcome: tenancy.OutcomeClientAborted, Duration: target + 1}, 0, "", "missed"},
		{"broken off by the worker", tenancy.Row{Status: 200, Outcome: tenancy.OutcomeUpstreamError}, time.Second, "", "failed"},
		{"no worker could", tenancy.Row{Status: 502, Outcome: tenancy.OutcomeUpstreamError}, 0, "", "failed"},
		{"the worker found fault with it", tenancy.Row{Status: 400, Outcome: tenancy.OutcomeRejected}, 0, "", "unmeasured"},
		{"refused", tenancy.Row{Status: 429, Outcome: tenancy.OutcomeRejected}, 0, "forecast", "refused"},
		{"refused after it had begun", tenancy.Row{Status: 200, Outcome: tenancy.OutcomeRejected}, 0, "waited", "refused"},
	} {
		s := gateway.Summary{Row: &c.row, Queued: true, TTFTTarget: target, FirstToken: c.first, QueueRefused: c.refused}
		got := classResult(&s)
		if got != c.want || !slices.Contains(chargeback.ClassResults, got) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	s := gateway.Summary{Row: &tenancy.Row{Status: 200, Outcome: tenancy.OutcomeCompleted}, FirstToken: time.Second}
	if got := classResult(&s); got != "unmeasured" {
		t.Errorf("without a target: %s", got)
	}
}

// The counters of a class are there before its first request, and none of its series comes back when a request
// ends after its class has left.
func TestSeriesOfClasses(t *testing.T) {
	tenants, err := chargeback.NewTenantMetrics(chargeback.MetricsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m := newMetrics(reg, tenants, newWorkerNames())
	of := func(class string) (series int) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, metric := range f.Metric {
				for _, l := range metric.Label {
					if l.GetName() == "class" && l.GetValue() == class {
						series++
					}
				}
			}
		}
		return series
	}
	m.classes.inForce([]string{"fast", "slow"}, m.dropClass)
	atFirst := len(chargeback.ClassResults) + len(gateway.QueueReasons()) + len(gateway.QueueTurns())
	if of("fast") != atFirst || of("slow") != atFirst {
		t.Errorf("before the first request fast has %d series and slow %d, want %d", of("fast"), of("slow"), atFirst)
	}
	ends := func() {
		row := tenancy.Row{Class: "slow", Pool: "p", Model: "m", Status: 200, Outcome: tenancy.OutcomeCompleted, TTFT: time.Second}
		m.Observe(&gateway.Summary{
			Row: &row, Billable: true, Queued: true, TTFTTarget: time.Second, FirstToken: time.Second, QueueForecast: time.Second, QueueTurn: gateway.TurnGranted,
			UpstreamTTFT: time.Second, Predicted: time.Second, PerOutputToken: time.Second, Attempts: []gateway.Attempt{{Pool: "p", Worker: "w", Status: 200}},
		})
		row = tenancy.Row{Class: "slow", Status: 429, Outcome: tenancy.OutcomeRejected}
		m.Observe(&gateway.Summary{Row: &row, Billable: true, Queued: true, QueueRefused: "forecast"})
	}
	ends()
	if n := of("slow"); n != atFirst+5 { // its five histograms
		t.Errorf("slow has %d series, want %d", n, atFirst+5)
	}
	m.classes.inForce([]string{"fast"}, m.dropClass)
	ends()
	if of("slow") != 0 || of(otherClass) != 9 { // met, refused, granted, forecast, and the histograms
		t.Errorf("slow has left and has %d series; other has %d", of("slow"), of(otherClass))
	}
}

// However a request ends, it counts once among turns and refusals, as among what became of targets.
func TestEachRequestEndsOnce(t *testing.T) {
	tenants, err := chargeback.NewTenantMetrics(chargeback.MetricsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m := newMetrics(reg, tenants, newWorkerNames())
	m.classes.inForce([]string{"fast"}, m.dropClass)
	sum := func(name string) (total float64) {
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range all {
			for _, series := range family.GetMetric() {
				if family.GetName() == name {
					total += series.GetCounter().GetValue() + float64(series.GetHistogram().GetSampleCount())
				}
			}
		}
		return total
	}
	ended, waited := 0.0, 0.0
	ends := func(s gateway.Summary) {
		t.Helper()
		s.Row, s.Billable, s.Queued = &tenancy.Row{Class: "fast", Pool: "p", Status: 200}, true, true
		m.Observe(&s)
		ended++
		if s.QueueTurn == gateway.TurnPassed || s.QueueTurn == gateway.TurnGranted {
			waited++
		}
		turns, refusals := sum("sluice_queue_turns_total"), sum("sluice_queue_refusals_total")
		if requests := sum("sluice_class_requests_total"); turns+refusals != ended || requests != ended || sum("sluice_queue_wait_seconds") != waited {
			t.Errorf("after %q and %q: %v turns and %v refusals of %v requests, %v are counted by class and %v waits of %v",
				s.QueueTurn, s.QueueRefused, turns, refusals, ended, requests, sum("sluice_queue_wait_seconds"), waited)
		}
	}
	for _, turn := range gateway.QueueTurns() {
		ends(gateway.Summary{QueueTurn: turn})
	}
	for _, reason := range gateway.QueueReasons() {
		ends(gateway.Summary{QueueRefused: reason})
	}
}

// aQueue is a state with a bit of everything: a pool that is contended, a class that is gone.
func aQueue(now time.Time) *gateway.QueueState {
	cfg := qos.DefaultConfig("fast", "slow")
	cfg.Classes[1].WorkerPriority, cfg.Classes[1].HasPriority = 7, true
	return &gateway.QueueState{
		Config: cfg, LateWakeups: 2,
		Stats: qos.Stats{
			Waiting: 3, Bytes: 4096, Flows: 2,
			Pools: []qos.PoolStats{{ID: 0, Name: "a", Rate: 1000, Look: now.Add(time.Second)}, {ID: 1, Name: "b"}},
			Classes: []qos.ClassStats{
				{ID: 0, Name: "fast", Passed: 5, Granted: 4, Left: 1},
				{ID: 1, Name: "old", Gone: true},
				{ID: 2, Name: "slow", Waiting: 3, Oldest: now.Add(-4 * time.Second), Refused: [qos.NumReasons]int64{qos.ReasonForecast: 6}},
			},
			Bands: []qos.BandStats{
				{Pool: 0, Class: 0, Placed: 100},
				{Pool: 0, Class: 1, Waiting: 9},
				{Pool: 0, Class: 2, Waiting: 3, Work: 900, Credit: 12, Placed: 50, Contended: 80, Got: 20, Refusing: true},
				{Pool: 1, Class: 2, Waiting: 1, Work: 300},
			},
		},
		Flows: []qos.FlowStats{{Pool: 0, Class: 2, Tenant: "acme", Weight: 2, Waiting: 3, Work: 900, Ahead: 40}},
		Refused: []gateway.QueueRefusal{{
			At: now, RequestID: "req-1", Tenant: "acme", Class: "slow", Reason: qos.ReasonForecast, Pools: []string{"a"}, Work: 300,
			Forecast: 9 * time.Minute, MaxWait: 5 * time.Minute, RetryAfter: 4 * time.Minute,
		}},
	}
}

// collected is a collector of what a function collects.
type collected func(chan<- prometheus.Metric)

func (c collected) Describe(chan<- *prometheus.Desc) {}

func (c collected) Collect(ch chan<- prometheus.Metric) { c(ch) }

func TestQueueStateSeries(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	c := collected(func(ch chan<- prometheus.Metric) { collectQueueState(ch, aQueue(now), now) })
	const want = `
# HELP sluice_queue_contended_tokens_total Work of all classes that went to the pool while this class waited there.
# TYPE sluice_queue_contended_tokens_total counter
sluice_queue_contended_tokens_total{class="fast",pool="a"} 0
sluice_queue_contended_tokens_total{class="slow",pool="a"} 80
sluice_queue_contended_tokens_total{class="slow",pool="b"} 0
# HELP sluice_queue_depth Requests that wait; one that may go to several pools counts at each.
# TYPE sluice_queue_depth gauge
sluice_queue_depth{class="fast",pool="a"} 0
sluice_queue_depth{class="slow",pool="a"} 3
sluice_queue_depth{class="slow",pool="b"} 1
# HELP sluice_queue_late_wakeups_total Requests that got a worker only since the queue looks again after a while; above 0 is a fault of the gateway.
# TYPE sluice_queue_late_wakeups_total counter
sluice_queue_late_wakeups_total 2
# HELP sluice_queue_oldest_seconds How long the request has waited that waits longest; 0 if none waits.
# TYPE sluice_queue_oldest_seconds gauge
sluice_queue_oldest_seconds{class="fast"} 0
sluice_queue_oldest_seconds{class="slow"} 4
# HELP sluice_queue_requests Requests that wait, each once.
# TYPE sluice_queue_requests gauge
sluice_queue_requests 3
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "sluice_queue_contended_tokens_total", "sluice_queue_depth", "sluice_queue_late_wakeups_total", "sluice_queue_oldest_seconds", "sluice_queue_requests"); err != nil {
		t.Error(err)
	}
}

func TestQueuePage(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	text, err := json.Marshal(newQueuePage(aQueue(now), now))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"queued":true,"requests":3,"max_requests":100000,"bytes":4096`, `"late_wakeups":2`,
		`{"name":"slow","target_ms":60000,"max_wait_ms":300000`, `"worker_priority":7,"waiting":3,"oldest_ms":4000`, `"refused":{"forecast":6}`,
		`{"name":"a","tokens_per_second":1000,"looked_at_again":`, `{"class":"slow","waiting":3,"work_tokens":900,"credit_tokens":12,"share_got":0.25,"refusing":true}`,
		`{"tenant":"acme","pool":"a","class":"slow","weight":2,"waiting":3,"work_tokens":900,"ahead_tokens":40}`,
		`"request_id":"req-1","tenant":"acme","class":"slow","reason":"forecast","pools":["a"],"work_tokens":300,"waited_ms":0,"forecast_ms":540000,"max_wait_ms":300000,"retry_after_ms":240000`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %s:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), `"name":"old"`) {
		t.Error("the page shows a class that is gone and has nothing waiting")
	}
}

// A gateway has a queue unless its configuration says otherwise; a reload takes it away, gives it back and changes its
// classes: the page and the metrics follow, and what is gone has no series.
func TestReloadedQueue(t *testing.T) {
	r := startReloading(t, unwatched)
	page := func() (p queuePage) {
		t.Helper()
		resp := askAdmin(t, r.a, http.MethodGet, "/debug/queue")
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("/debug/queue: %d %v", resp.StatusCode, err)
		}
		return p
	}
	class := func(name string) classPage {
		t.Helper()
		list := page().Classes
		i := slices.IndexFunc(list, func(c classPage) bool { return c.Name == name })
		if i < 0 {
			t.Fatalf("/debug/queue has no class %s: %+v", name, list)
		}
		return list[i]
	}
	ask := func() {
		t.Helper()
		if status, _ := r.ask("acme"); status != 200 {
			t.Fatalf("acme got %d", status)
		}
	}
	reload := func() {
		t.Helper()
		if status, p := r.reload(); status != 200 {
			t.Fatalf("reload: %d %+v", status, p)
		}
	}
	file := filepath.Join(r.d.dir, "sluice.yaml")
	ask()
	if p := page(); !p.Queued || p.MaxRequests != 100_000 || class("interactive").Target != 2_000 {
		t.Errorf("without a qos section /debug/queue has %+v", p)
	}
	editConfig(r.d.dir, "qos: { enabled: false }\n")
	reload()
	ask()
	if page().Queued {
		t.Error("there is a queue although it is not enabled")
	}
	edit(t, file, "qos: { enabled: false }\n", "")
	editConfig(r.d.dir, "qos: { maxRequests: 70, classes: { batch: { target: 30s, share: 0.2 } } }\n")
	reload()
	ask()
	if p := page(); !p.Queued || p.MaxRequests != 70 {
		t.Errorf("after a reload /debug/queue has %+v", p)
	}
	if c := class("batch"); c.Target != 30_000 || c.Share != 0.2 || c.MaxWait != 300_000 {
		t.Errorf("batch is %+v", c)
	}
	r.wantMetrics(
		`sluice_class_target_seconds{class="batch"} 30`, `sluice_class_share_ratio{class="batch"} 0.2`, `sluice_class_rank{class="critical"} 1`,
		"sluice_queue_requests_limit 70", "sluice_queue_requests 0", `sluice_queue_depth{class="batch",pool="general"} 0`, "sluice_queue_late_wakeups_total 0",
		`sluice_tenant_queue_depth{tenant="acme"} 0`,
	)
	text := metricsText(t, r.a)
	if !strings.Contains(text, "\nsluice_class_requests_total{") || !strings.Contains(text, "\nsluice_queue_wait_seconds_count{") || !strings.Contains(text, "\nsluice_tenant_class_requests_total{") {
		t.Error("the request is counted under no class")
	}
	edit(t, file, "maxRequests: 70, classes: { batch: { target: 30s, share: 0.2 } }", "classes: { batch: { share: 0.95 } }")
	if status, _ := r.reload(); status != 409 {
		t.Errorf("a share of 0.95 is answered with %d", status)
	}
	if c := class("batch"); c.Share != 0.2 {
		t.Errorf("after a reload that failed batch is %+v", c)
	}
	edit(t, file, "share: 0.95", "target: 40s")
	reload()
	ask()
	if c := class("batch"); c.Target != 40_000 || c.Share != 0.05 {
		t.Errorf("batch is %+v", c)
	}
	if n := page().MaxRequests; n != 100_000 {
		t.Errorf("at most %d requests wait", n)
	}
	edit(t, file, "classes: { batch: { target: 40s } }", "enabled: false")
	reload()
	ask()
	if page().Queued {
		t.Error("/debug/queue has a queue after it was taken away")
	}
}
