package main

import (
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
	"github.com/sluicegate/sluice/scoring/simworker/model"
)

func testWords(t *testing.T) *rig.Words {
	t.Helper()
	w, err := rig.NewWords(model.FS, modelName)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Twenty tenants ask for twice the capacity, the flooding one for thirty times as
// much as each of its neighbours.
func TestTenants(t *testing.T) {
	all := tenants()
	perClass := make(map[int]float64)
	for i := range all {
		perClass[all[i].class] += all[i].part
	}
	i := slices.IndexFunc(all, func(t tenant) bool { return t.floods })
	if len(all) != 20 || math.Abs(parts(all)-2) > 1e-9 || all[i].name != flooder || math.Abs(all[i].part/all[i-1].part-30) > 1e-9 || all[i-1].class != all[i].class {
		t.Errorf("tenants are %+v", all)
	}
	if perClass[0] > 1 || perClass[1] > 1 || perClass[0]+perClass[1] < 1 {
		t.Errorf("classes ask for %v: only all together is it too much", perClass)
	}
	text, names := directory()
	if len(names) != 20+yardsticks || strings.Count(text, "tier: bronze") != 5 || strings.Count(text, "tier: gold") != 8+yardsticks {
		t.Errorf("the tenants file names %d:\n%s", len(names), text)
	}
}

// What a tenant sends does not depend on who else sends, and all together ask for
// as much work as was meant.
func TestArrivals(t *testing.T) {
	words := testWords(t)
	all := tenants()
	const capacity, length = 20_000.0, 20 * time.Second
	with := arrivals(words, all, capacity, 1, length, 5)
	without := arrivals(words, slices.DeleteFunc(slices.Clone(all), func(t tenant) bool { return t.floods }), capacity, 1, length, 5)
	if !slices.IsSortedFunc(with, func(a, b arrival) int { return int(a.at - b.at) }) {
		t.Error("requests are not in order")
	}
	of := func(list []arrival, name string) (bodies []string) {
		for i := range list {
			if list[i].tenant.name == name {
				bodies = append(bodies, list[i].at.String()+string(list[i].body))
			}
		}
		return bodies
	}
	for _, name := range []string{"interactive-1", "standard-3", "batch-5"} {
		if a, b := of(with, name), of(without, name); len(a) == 0 || !slices.Equal(a, b) {
			t.Errorf("%s sends %d requests with the flood and %d others without", name, len(a), len(b))
		}
	}
	if len(of(without, flooder)) != 0 {
		t.Error("the flood is there without the flood")
	}
	sum := 0.0
	for i := range with {
		sum += with[i].work()
	}
	if asked := sum / length.Seconds() / capacity; asked < 1.7 || asked > 2.3 {
		t.Errorf("all ask for %.2f of the capacity, want about 2", asked)
	}
}

// A refused client comes back when it was told, as often as it is refused, and a
// flooding one does not.
func TestReturns(t *testing.T) {
	var comings atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if comings.Add(1) <= 2 {
			rw.Header().Set("Retry-After", "1")
			http.Error(rw, `{"error":{"code":"overloaded"}}`, http.StatusTooManyRequests)
			return
		}
		_, _ = io.WriteString(rw, `data: {"choices":[{"delta":{"content":"a"}}]}`+"\n\ndata: [DONE]\n\n")
	}))
	defer srv.Close()
	play := func(who tenant, length time.Duration) []record {
		comings.Store(0)
		s := rig.NewSender(srv.URL)
		defer s.Close()
		l := &load{sender: s, keys: map[string]string{"t": "key"}, length: length}
		return l.play(t.Context(), []arrival{{at: 0, tenant: &who, prompt: 10, output: 5, body: []byte("{}")}})
	}
	got := play(tenant{name: "t"}, time.Hour)
	if len(got) != 3 || !got[0].Refused || got[0].RetryAfterS != 1 || !got[1].Refused || got[2].Refused || !got[2].served() {
		t.Fatalf("records are %+v", got)
	}
	for i, r := range got {
		if r.Return != i || r.First != 0 || i > 0 && r.At < got[i-1].End+1 {
			t.Errorf("coming %d is %+v", i, r)
		}
	}
	if got := play(tenant{name: "t", floods: true}, time.Hour); len(got) != 1 || !got[0].Refused {
		t.Errorf("a flooding client's records are %+v", got)
	}
	if got := play(tenant{name: "t"}, time.Second/2); len(got) != 1 {
		t.Errorf("after the run's end came %+v", got)
	}
}

func TestFigures(t *testing.T) {
	at := func(tenant, class string, return_ int, at, end, first float64, status int) record {
		r := record{Tenant: tenant, Class: class, Return: return_, First: at, At: at, End: end, Work: 100, FirstMS: first, Status: status}
		if status != 200 {
			r.Error, r.Refused = "status", status == 429
		}
		return r
	}
	scale := 0.5 // so a target of 2 s is one real second
	f := figure("flood", 2, []record{
		at("interactive-1", "interactive", 0, 1, 2, 500, 200),   // before the measured time
		at("interactive-1", "interactive", 0, 12, 14, 900, 200), // met
		at("interactive-1", "interactive", 0, 12, 14, 1100, 200),
		at("interactive-1", "interactive", 0, 13, 13, 0, 429),
		at("interactive-1", "interactive", 1, 15, 16, 400, 200), // a return that is welcome
		at("batch-1", "batch", 0, 9, 11, 1000, 200),             // came before it, ended in it
		at("batch-1", "batch", 0, 19, 21, 1000, 200),            // ended after it
		at("batch-1", "batch", 0, 15, 16, 0, 500),
	}, 10*time.Second, 20*time.Second, scale)
	i, b := f.class("interactive"), f.tenant("batch-1")
	if f.Seconds != 20 || i.Comings != 4 || i.Served != 3 || i.Refused != 1 || i.Met != 0.5 || i.Returns != 1 || i.Welcome != 1 || i.Asked != 15 || i.Work != 15 || i.Done != 15 {
		t.Errorf("interactive: %+v of %v s", i, f.Seconds)
	}
	if b.Comings != 2 || b.Served != 1 || b.Failed != 1 || b.Errors["status"] != 1 || b.Work != 5 || b.Done != 5 || b.Share != 0.25 || b.P50 != 2 {
		t.Errorf("batch-1: %+v", b)
	}
	if f.Work != 20 || f.Goodput != 15 {
		t.Errorf("work %v, good %v", f.Work, f.Goodput)
	}
}

func TestFair(t *testing.T) {
	f := func(total float64, demands, want []float64) {
		t.Helper()
		got := fair(total, demands)
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-9 {
				t.Errorf("%v of %v: %v, want %v", total, demands, got, want)
				return
			}
		}
	}
	f(10, []float64{1, 30, 2}, []float64{1, 7, 2})
	f(9, []float64{30, 5, 2}, []float64{3.5, 3.5, 2})
	f(9, []float64{5, 5, 5}, []float64{3, 3, 3})
	f(9, []float64{1, 2}, []float64{1, 2})
	f(9, nil, nil)
}

// Each criterion can be met and missed, and what was not measured is not judged.
func TestVerdicts(t *testing.T) {
	flood := func(met, share, good, asked, peer, own, left float64, welcome int) *figures {
		standard := []*groupFigures{{Name: "standard-1", Class: "standard", Asked: asked, Done: peer, Returns: 100, Welcome: welcome}, {Name: flooder, Class: "standard", Asked: 300, Done: own}}
		return &figures{Run: "flood", Goodput: good, Left: left, Tenants: standard, Classes: []*groupFigures{{Name: "interactive", Met: met}, {Name: "batch", Share: share}}}
	}
	calm := &figures{Run: "calm", Tenants: []*groupFigures{{Name: "standard-1", Class: "standard", Asked: 10, Done: 10}}}
	light := func(refused int) *figures {
		return &figures{Run: "light", Classes: []*groupFigures{{Name: "batch", Refused: refused}}}
	}
	for name, test := range map[string]struct {
		runs []*figures
		want int
		met  bool
	}{
		"all met":    {[]*figures{light(0), calm, flood(0.995, 0.16, 96, 10, 9.9, 90, 0, 95)}, 8, true},
		"all missed": {[]*figures{light(1), calm, flood(0.98, 0.14, 94, 100, 5, 200, 1, 80)}, 8, false},
		"only some":  {[]*figures{light(0)}, 1, true},
		"none":       {nil, 0, true},
	} {
		r := &report{Capacity: 100, Runs: test.runs}
		r.judge()
		if len(r.Verdicts) != test.want {
			t.Errorf("%s: %d verdicts: %+v", name, len(r.Verdicts), r.Verdicts)
		}
		for _, v := range r.Verdicts {
			if v.Met != test.met {
				t.Errorf("%s: %s: %s is %v", name, v.What, v.Got, v.Met)
			}
		}
		if err := r.write(t.TempDir()); err != nil {
			t.Error(err)
		}
	}
}

func TestSumOf(t *testing.T) {
	page := "# TYPE sluice_queue_depth gauge\nsluice_queue_depth{pool=\"a\",class=\"b\"} 2\nsluice_queue_depth{pool=\"c\",class=\"b\"} 3\nsluice_queue_depth_other 9\n"
	if sum, err := sumOf(page, "sluice_queue_depth"); err != nil || sum != 5 {
		t.Errorf("%v, %v", sum, err)
	}
	if _, err := sumOf("sluice_queue_depth x\n", "sluice_queue_depth"); err == nil {
		t.Error("a value that is no number was read")
	}
}

func TestPlanErrors(t *testing.T) {
	for args, want := range map[string]string{
		"-runs none":            `there is no run "none"`,
		"-runs flood":           "-capacity must say it",
		"-time-scale 0":         "must be above 0",
		"more":                  `unexpected argument "more"`,
		"-qos /none/of/these":   "cannot read the qos section",
		"-capacity -1 -warm 1s": "not below",
	} {
		if _, err := parsePlan(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	p, err := parsePlan(strings.Fields("-runs flood -capacity 1000 -time-scale 0.5"))
	if err != nil || !slices.Equal(p.runs, []string{"flood"}) || !strings.Contains(p.env.qos, "interactive: { target: 1s, maxWait: 5s, share: 0 }") {
		t.Errorf("plan %+v, %v", p, err)
	}
}

func TestKeep(t *testing.T) {
	if err := keep(filepath.Join(t.TempDir(), "missing", "x"), nil); err == nil {
		t.Error("records were kept in a folder that is not there")
	}
}
