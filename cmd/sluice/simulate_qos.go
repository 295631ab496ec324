package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring/simulate"
)

func (f *simulateFlags) registerQoS(fs *pflag.FlagSet) {
	fs.StringVar(&f.qos, "qos", "", "put the gateway's queue in front of the workers, with the classes of this configuration `FILE` (policy.classes, qos)")
	fs.StringSliceVar(&f.tenants, "tenants", nil, "`CLASS:COUNTxRATE` with commas between them: so many tenants with so many requests a second each; "+
		"with ! before it they send again after 1 s whatever they are told. Without --qos the classes are those of a configuration without any")
	fs.Float64Var(&f.overload, "overload", 0, "scale the rates of --tenants so that all come to so many times what the workers can serve, which is measured first")
	fs.IntVar(&f.returns, "returns", 3, "tenants: how often a request that is refused comes again, by default when it was told to")
	fs.Float64Var(&f.said, "said", 0, "tenants: clients say max_tokens of so many times what the answer will have, at least 1; 0: they say nothing")
}

// Bounds of --tenants.
const (
	maxSimTenants  = 10_000
	hurry          = time.Second // after which clients come again that do not do what they are told
	maxSimOverload = 100
)

// queued reports whether there is a queue in front of the workers.
func (f *simulateFlags) queued() bool { return f.qos != "" || len(f.tenants) > 0 }

// checkQoS reports flags of the queue that do not go with others.
func (f *simulateFlags) checkQoS() error {
	switch {
	case f.given("overload") && len(f.tenants) == 0:
		return &usageError{"--overload needs --tenants"}
	case f.given("returns") && len(f.tenants) == 0:
		return &usageError{"--returns needs --tenants"}
	case f.given("said") && len(f.tenants) == 0:
		return &usageError{"--said needs --tenants"}
	}
	for _, flag := range []string{"trace", "rate", "streams"} {
		if len(f.tenants) > 0 && f.given(flag) {
			return &usageError{fmt.Sprintf("--tenants and --%s do not go together: tenants have rates of their own", flag)}
		}
	}
	if len(f.tenants) > 0 && f.workload == "multi-turn" {
		return &usageError{"--tenants does not go with --workload multi-turn: its requests come by themselves"}
	}
	if f.given("overload") {
		b := bound{"overload", f.overload, 0.01, maxSimOverload, ""}
		if err := b.check(); err != nil {
			return err
		}
	}
	if f.said != 0 {
		b := bound{"said", f.said, 1, 1000, ""}
		if err := b.check(); err != nil {
			return err
		}
	}
	b := bound{"returns", float64(f.returns), 0, 1000, ""}
	return b.check()
}

// classes returns the queue's configuration, nil without a queue.
func (f *simulateFlags) classes() (*qos.Config, error) {
	if !f.queued() {
		return nil, nil
	}
	cfg := DefaultConfig()
	if f.qos != "" {
		given, _, err := LoadConfig(f.qos)
		if err != nil {
			return nil, err
		}
		cfg = *given
	}
	queue := cfg.QoS.queue(cfg.Policy.Classes)
	return &queue, nil
}

// groups reads --tenants.
func (f *simulateFlags) groups(classes []qos.Class) ([]simulate.Group, error) {
	var groups []simulate.Group
	tenants := make(map[string]int) // by class, for their names
	for _, s := range f.tenants {
		text, hurries := strings.CutPrefix(s, "!")
		name, rest, _ := strings.Cut(text, ":")
		count, rate, _ := strings.Cut(rest, "x")
		n, err := strconv.Atoi(count)
		r, err2 := strconv.ParseFloat(rate, 64)
		if err != nil || err2 != nil || n < 1 || n > maxSimTenants || !(r > 0 && r <= maxSimRate) {
			return nil, &usageError{fmt.Sprintf("--tenants has %q, should have a class, a number of tenants from 1 to %d and the requests a second of each, as in standard:6x0.5", s, maxSimTenants)}
		}
		class := slices.IndexFunc(classes, func(c qos.Class) bool { return c.Name == name })
		if class < 0 {
			return nil, &usageError{fmt.Sprintf("--tenants has the class %q, should have one of %s", name, strings.Join(classNames(classes), ", "))}
		}
		g := simulate.Group{Name: name, First: tenants[name], Tenants: n, Class: class, Rate: r * float64(n), Returns: f.returns}
		if hurries {
			g.Hurry = hurry
		}
		tenants[name] += n
		groups = append(groups, g)
	}
	return groups, nil
}

func classNames(classes []qos.Class) []string {
	names := make([]string, len(classes))
	for i := range classes {
		names[i] = classes[i].Name
	}
	return names
}

// mix makes the load of --tenants, of requests of one kind.
func (f *simulateFlags) mix(cfg *simulate.Config, prompts simulate.Prefixed) (*simulate.Plan, error) {
	groups, err := f.groups(cfg.QoS.Classes)
	if err != nil {
		return nil, err
	}
	rate := 0.0
	for i := range groups {
		rate += groups[i].Rate
	}
	m := simulate.Mix{Name: prompts.Name, Groups: groups, Prompts: prompts}
	if f.given("overload") {
		capacity, _, err := simulate.Capacity(cfg, prompts)
		if err != nil {
			return nil, err
		}
		if capacity == 0 {
			return nil, &usageError{"--overload: the workers serve no request within --ttft-objective, so there is no capacity to take times of"}
		}
		scale := f.overload * capacity / rate
		for i := range groups {
			groups[i].Rate *= scale
		}
		rate *= scale
		m.Name = fmt.Sprintf("%s at %g times the capacity of %.3g requests a second", prompts.Name, f.overload, capacity)
	}
	m.For = time.Duration(float64(f.requests) / rate * float64(time.Second))
	return m.Plan(f.seed), nil
}
