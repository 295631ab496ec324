package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// report is the file of results.
type report struct {
	Started   time.Time  `json:"started"`
	Arguments []string   `json:"arguments"`
	Machine   string     `json:"machine"`
	Commit    string     `json:"commit"`
	Scale     float64    `json:"time_scale"`
	Capacity  float64    `json:"capacity"` // work a second of the model's time
	Runs      []*figures `json:"runs"`
	Verdicts  []verdict  `json:"verdicts"`
}

// verdict is one of the criteria.
type verdict struct {
	What string `json:"what"`
	Got  string `json:"got"`
	Met  bool   `json:"met"`
}

func (r *report) run(name string) *figures {
	i := slices.IndexFunc(r.Runs, func(f *figures) bool { return f.Run == name })
	if i < 0 {
		return nil
	}
	return r.Runs[i]
}

// judge holds what was measured against the criteria; what was not measured is left
// out.
func (r *report) judge() {
	r.Verdicts = nil
	say := func(met bool, what, got string, args ...any) {
		r.Verdicts = append(r.Verdicts, verdict{what, fmt.Sprintf(got, args...), met})
	}
	if f := r.run("flood"); f != nil {
		i := f.class("interactive")
		say(i.Met >= 0.99, "interactive requests that met their target, refused ones counted as missed: at least 99 %", "%.2f %% of %d", 100*i.Met, i.Comings)
		b := f.class("batch")
		say(b.Share >= 0.15, "batch's part of all work: at least its share, 15 %", "%.1f %%", 100*b.Share)
		r.judgeFlood(f, say)
		if r.Capacity > 0 {
			say(f.Goodput >= 0.95*r.Capacity, "work of requests that met their target: at least 95 % of what one class alone reaches", "%.1f %% (%.0f of %.0f tokens a second)",
				100*f.Goodput/r.Capacity, f.Goodput, r.Capacity)
		}
		returns, welcome := 0, 0
		for _, t := range f.Tenants {
			returns, welcome = returns+t.Returns, welcome+t.Welcome
		}
		if returns > 0 {
			say(float64(welcome) >= 0.9*float64(returns), "returns at Retry-After that were not refused again: at least 90 %", "%.1f %% of %d", 100*float64(welcome)/float64(returns), returns)
		}
		say(f.Left == 0, "nothing queued at the end", "%.0f", f.Left)
	}
	if f := r.run("light"); f != nil {
		refused := 0
		for _, c := range f.Classes {
			refused += c.Refused
		}
		say(refused == 0, "nobody refused at 0.7 of the capacity", "%d refused", refused)
	}
}

// judgeFlood holds the flooding tenant and its neighbours against their fair parts.
func (r *report) judgeFlood(f *figures, say func(bool, string, string, ...any)) {
	var names []string
	var demands []float64
	total := 0.0
	for _, t := range f.Tenants {
		if t.Class == "standard" {
			names, demands = append(names, t.Name), append(demands, t.Asked)
			total += t.Done
		}
	}
	parts := fair(total, demands)
	if i := slices.Index(names, flooder); i >= 0 && parts[i] > 0 {
		ratio := f.tenant(flooder).Done / parts[i]
		say(ratio >= 0.9 && ratio <= 1.1, "the flooding tenant's work over its max-min fair part of its class: within 10 %", "%.3f", ratio)
	}
	calm := r.run("calm")
	if calm == nil {
		return
	}
	with, without := 0.0, 0.0
	for _, name := range names {
		if name != flooder {
			with, without = with+f.tenant(name).Done, without+calm.tenant(name).Done
		}
	}
	if without > 0 {
		say(with >= 0.98*without, "work of the flooding tenant's neighbours: at least 98 % of that without the flood", "%.1f %%", 100*with/without)
	}
}

// write writes the results as JSON and as tables.
func (r *report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "overload.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "overload.md"))
	if err != nil {
		return err
	}
	r.print(f)
	return f.Close()
}

func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, commit %s, %s, time scale %v; times and rates are the model's.\n", r.Started.Format(time.RFC3339), r.Commit, r.Machine, r.Scale)
	if r.Capacity > 0 {
		fmt.Fprintf(w, "One class alone, closed loop: %.0f tokens of work a second.\n", r.Capacity)
	}
	for _, f := range r.Runs {
		fmt.Fprintf(w, "\n%s: %.2f of the capacity, %.0f s; work %.0f a second, of requests that met their target %.0f; late p99 %.1f ms; taken back by workers %.0f; queued at the end %.0f; processors",
			f.Run, f.Factor, f.Seconds, f.Work, f.Goodput, f.Lag, f.Preempted, f.Left)
		for _, k := range slices.Sorted(maps.Keys(f.CPU)) {
			fmt.Fprintf(w, " %s %.2f", k, f.CPU[k])
		}
		fmt.Fprintln(w, "\n\n| | requests | served | met | refused | failed | TTFT p50 / p90 / p99, s | work a second | share | asked, done | returns, welcome |")
		fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|")
		groups := slices.Concat(f.Classes, f.Tenants)
		if f.Run == "one" {
			groups = f.Classes
		}
		for _, g := range groups {
			name := g.Name
			if g.Name == g.Class {
				name = "**" + name + "**"
			}
			fmt.Fprintf(w, "| %s | %d | %d | %.2f %% | %d | %d | %.2f / %.2f / %.2f | %.0f | %.1f %% | %.0f, %.0f | %d, %d |\n",
				name, g.Comings, g.Served, 100*g.Met, g.Refused, g.Failed, g.P50, g.P90, g.P99, g.Work, 100*g.Share, g.Asked, g.Done, g.Returns, g.Welcome)
		}
		for _, g := range f.Classes {
			for _, e := range slices.Sorted(maps.Keys(g.Errors)) {
				fmt.Fprintf(w, "\n%s failed %d times: %s\n", g.Name, g.Errors[e], e)
			}
		}
	}
	if len(r.Verdicts) > 0 {
		fmt.Fprintln(w, "\n| criterion | measured | |\n|---|---|---|")
		for _, v := range r.Verdicts {
			fmt.Fprintf(w, "| %s | %s | %s |\n", v.What, v.Got, map[bool]string{true: "met", false: "**missed**"}[v.Met])
		}
	}
}
