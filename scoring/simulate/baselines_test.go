//go:build !race

package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// discipline is another way to put requests before the same workers.
type discipline struct {
	name   string
	change func(*Config, *Plan)
	tune   func(*sim)
}

// oneLine has all requests be of one class and one tenant.
func oneLine(class func(*qos.Class)) func(*Config, *Plan) {
	return func(cfg *Config, p *Plan) {
		one := qos.DefaultConfig("all")
		one.MaxTenantShare = 1
		class(&one.Classes[0])
		cfg.QoS = &one
		for i := range p.Requests {
			p.Requests[i].Class = 0
		}
		for i := range p.Tenants {
			p.Tenants[i].Name = "all"
		}
	}
}

// eachClass changes all classes.
func eachClass(f func(*qos.Class)) func(*Config, *Plan) {
	return func(cfg *Config, _ *Plan) {
		for i := range cfg.QoS.Classes {
			f(&cfg.QoS.Classes[i])
		}
	}
}

// disciplines are the queue and what could be had instead of it, by the same code
// where its configuration can say it.
func disciplines() []discipline {
	return []discipline{
		{name: "the queue"},
		{name: "none: the engines' own queues", change: oneLine(func(c *qos.Class) {
			c.Target, c.MaxWait, c.Bound = time.Hour, 10_000*time.Hour, qos.Unbounded
		})},
		{name: "one line, first come first served", change: oneLine(func(c *qos.Class) {
			like := overloadClasses().Classes
			c.Target, c.MaxWait, c.Bound = like[1].Target, like[1].MaxWait, like[0].Bound
		})},
		{name: "strict priority, no shares", change: eachClass(func(c *qos.Class) { c.Share = 0 })},
		{name: "fair by requests", change: func(cfg *Config, _ *Plan) { cfg.QoS.Slack = 4 }, tune: byCount},
		{name: "no bound on workers' waits", change: eachClass(func(c *qos.Class) { c.Bound = qos.Unbounded })},
	}
}

// byCount has each request cost as much as any other.
func byCount(m *sim) { m.queue.cost = func(int, int64) int64 { return 1 } }

// baselineColumns are the figures that disciplines are compared by.
var baselineColumns = []struct{ name, format string }{
	{"interactive met, %", "%.1f"}, {"flood's peers met, %", "%.1f"}, {"peers' work, % of wanted", "%.0f"},
	{"batch, % of work", "%.1f"}, {"flood, % of work", "%.1f"}, {"refused, %", "%.0f"},
	{"work in time, % of capacity", "%.1f"}, {"work, % of capacity", "%.1f"}, {"taken back", "%.0f"},
}

// compare adds the figures of a run to a row.
func compare(r row, p played) {
	all := p.fares(overloadWarmup(), group)
	var work, good, came, refused float64
	for _, f := range all {
		work, good = work+float64(f.work), good+float64(f.good)
		came, refused = came+float64(f.came), refused+float64(f.refused)
	}
	full := liveCapacity * (*overloadTime - overloadWarmup()).Seconds()
	peers := all["standard"]
	for i, v := range []float64{
		all["interactive"].metShare(), peers.metShare(), float64(peers.work) / float64(peers.wanted),
		float64(all["batch"].work) / work, float64(all["flood"].work) / work, refused / came,
		good / full, work / full, float64(p.preemptions()) / 100,
	} {
		r.add(baselineColumns[i].name, 100*v)
	}
}

func logRows(t *testing.T, names []string, rows map[string]row) {
	t.Helper()
	var b strings.Builder
	b.WriteString("\n| |")
	for _, c := range baselineColumns {
		fmt.Fprintf(&b, " %s |", c.name)
	}
	b.WriteString("\n|" + strings.Repeat("---|", len(baselineColumns)+1) + "\n")
	for _, name := range names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, c := range baselineColumns {
			fmt.Fprintf(&b, " %s |", spread(rows[name][c.name], c.format))
		}
		b.WriteString("\n")
	}
	t.Log(b.String())
}

// mean is the mean of a row's figures.
func (r row) mean(column string) float64 {
	sum := 0.0
	for _, v := range r[column] {
		sum += v
	}
	return sum / float64(len(r[column]))
}

// TestBaselines: what the queue is worth beside what could be had instead of it, at
// twice the capacity, each of it with the same requests before the same workers. The
// long form has all of them.
func TestBaselines(t *testing.T) {
	rows := make(map[string]row)
	var names []string
	for i, d := range disciplines() {
		if i > 3 && !longForm() {
			break
		}
		rows[d.name] = row{}
		names = append(names, d.name)
		for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
			compare(rows[d.name], play(t, liveMix(2).Plan(seed), seed, d.change, d.tune))
		}
	}
	logRows(t, names, rows)
	const interactive, peersMet, peersWork, batch, good = 0, 1, 2, 3, 6
	for _, worse := range []struct {
		than, column int
		by           float64 // points
	}{
		{1, interactive, 50}, {1, peersMet, 50}, {1, peersWork, 20}, {1, good, 20},
		{2, interactive, 50}, {2, peersMet, 30}, {2, peersWork, 20},
		{3, batch, 5},
	} {
		if worse.than >= len(names) {
			continue
		}
		column := baselineColumns[worse.column].name
		with, without := rows[names[0]].mean(column), rows[names[worse.than]].mean(column)
		if with-without < worse.by {
			t.Errorf("%s: %.1f with the queue, %.1f with %s", column, with, without, names[worse.than])
		}
	}
}

// merge puts two loads together.
func merge(a, b *Plan) *Plan {
	p := &Plan{Name: a.Name, Requests: slices.Clone(a.Requests), Tenants: slices.Concat(a.Tenants, b.Tenants)}
	for _, r := range b.Requests {
		r.Tenant += len(a.Tenants)
		p.Requests = append(p.Requests, r)
	}
	slices.SortStableFunc(p.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return p
}

// TestLongRequestsBesideShortOnes: two tenants want as much work each, which is twice
// what there is, and the requests of one are four times as long. By tokens each should
// have half of it, although a long one needs more room at a time, and by count the long
// ones have far more. Nobody is refused for long waits, so that order alone decides.
func TestLongRequestsBesideShortOnes(t *testing.T) {
	const capacity = liveCapacity / 2000 // requests of 2,000 tokens of work a second
	of := func(name string, prompt, answer int, rate float64) Mix {
		return Mix{
			Name: "fair", For: *overloadTime, Groups: []Group{{Name: name, Tenants: 1, Class: 1, Rate: rate}},
			Prompts: Prefixed{Name: name, FreshMin: prompt, FreshMax: prompt, OutputMin: answer, OutputMax: answer, Said: 1},
		}
	}
	share := func(seed uint64, d discipline) float64 {
		plan := merge(of("short", 600, 100, 2*capacity).Plan(seed), of("long", 2400, 400, capacity/2).Plan(seed+1000))
		patient := func(cfg *Config, p *Plan) {
			if d.change != nil {
				d.change(cfg, p)
			}
			for i := range cfg.QoS.Classes {
				cfg.QoS.Classes[i].MaxWait = time.Hour
			}
		}
		sums := play(t, plan, seed, patient, d.tune).fares(overloadWarmup(), group)
		return float64(sums["long"].work) / float64(sums["long"].work+sums["short"].work)
	}
	all := disciplines()
	for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
		tokens, count := share(seed, all[0]), share(seed, all[4])
		t.Logf("seed %d: long requests have %.3f of the work by tokens, %.3f by count", seed, tokens, count)
		if tokens < 0.45 || tokens > 0.55 {
			t.Errorf("seed %d: long requests have %.3f of the work", seed, tokens)
		}
		if count < tokens+0.2 {
			t.Errorf("seed %d: long requests have %.3f of the work by count, %.3f by tokens", seed, count, tokens)
		}
	}
}
