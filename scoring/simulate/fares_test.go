//go:build !race

package simulate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/placing"
)

// fare is how some tenants' requests fared. Comings count: one that was refused is
// missed, and counts again when it comes back.
type fare struct {
	came, refused, met int
	returned, welcome  int
	// work is that of answers that ended, good of them in time, wanted that of
	// requests that first came, all in tokens.
	work, good, wanted int64
	// waits are the times in the queue of those that were given to a worker.
	waits []time.Duration
}

func (f *fare) metShare() float64 { return float64(f.met) / float64(max(1, f.came)) }

// longest is the longest wait.
func (f *fare) longest() time.Duration {
	if len(f.waits) == 0 {
		return 0
	}
	return slices.Max(f.waits)
}

// played is a run and what was asked for, which the run itself may have been told
// otherwise.
type played struct {
	*sim
	asked *Plan
}

// play runs a plan before six workers, under classes or as change has it. each is
// called after each thing that happens, if it is set.
func play(t *testing.T, asked *Plan, seed uint64, change func(*Config, *Plan), tune func(*sim)) played {
	t.Helper()
	m := begin(t, asked, seed, change, tune)
	for m.left > 0 {
		m.step()
	}
	return played{m, asked}
}

// begin begins what play plays.
func begin(t *testing.T, asked *Plan, seed uint64, change func(*Config, *Plan), tune func(*sim)) *sim {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Workers, cfg.Seed, cfg.QoS = 6, seed, overloadClasses()
	cfg.Engine.Timing.Jitter = 0.05
	plan := *asked
	plan.Requests = slices.Clone(asked.Requests)
	plan.Tenants = slices.Clone(asked.Tenants)
	if change != nil {
		change(&cfg, &plan)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	m, err := newSim(&cfg, &plan, Strategy{})
	if err != nil {
		t.Fatal(err)
	}
	if tune != nil {
		tune(m)
	}
	m.start()
	return m
}

// preemptions is how often workers took running requests back.
func (p played) preemptions() (n int) {
	for _, node := range p.nodes {
		n += int(node.eng.Stats().Preemptions)
	}
	return n
}

// group is what a tenant is one of: "standard" is that of standard-3.
func group(tenant string) string {
	name, _, _ := strings.Cut(tenant, "-")
	return name
}

// fares sums up by what of says of a tenant's name, from a time on and as long as
// requests come. Targets are those of the classes that were asked for.
func (p played) fares(from time.Duration, of func(tenant string) string) map[string]*fare {
	classes := overloadClasses().Classes
	sums := make(map[string]*fare)
	at := func(request int) (*fare, *qos.Class) {
		r := &p.asked.Requests[request]
		name := of(p.asked.Tenants[r.Tenant].Name)
		if sums[name] == nil {
			sums[name] = &fare{}
		}
		return sums[name], &classes[r.Class]
	}
	counts := func(when time.Duration) bool { return when >= from && when < p.until }
	for i := range p.queue.refused {
		r := &p.queue.refused[i]
		if f, _ := at(r.Request); counts(r.At) {
			f.came++
			f.refused++
			if r.Return > 0 {
				f.returned++
			}
		}
	}
	for i := range p.record {
		s, r := &p.record[i], &p.asked.Requests[i]
		f, class := at(i)
		if counts(r.At) {
			prompt := r.tokens()
			f.wanted += placing.Cost(prompt, int64(r.Output))
		}
		if s.Refused {
			continue
		}
		inTime := s.TTFT <= class.Target
		if counts(s.Sent + s.Total) {
			f.work += s.Work
			if inTime {
				f.good += s.Work
			}
		}
		if !counts(s.Sent) {
			continue
		}
		f.came++
		f.waits = append(f.waits, s.Queued)
		if inTime {
			f.met++
		}
		if s.Return > 0 {
			f.returned++
			f.welcome++
		}
	}
	return sums
}

// spread writes the mean of some figures and their range.
func spread(values []float64, format string) string {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	mean := fmt.Sprintf(format, sum/float64(len(values)))
	if len(values) == 1 {
		return mean
	}
	return fmt.Sprintf("%s ("+format+"–"+format+")", mean, slices.Min(values), slices.Max(values))
}

// row is figures of several runs by column.
type row map[string][]float64

func (r row) add(column string, v float64) { r[column] = append(r[column], v) }
