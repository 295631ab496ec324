package simulate

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is the results of several strategies for one plan.
type Report struct {
	Workload string `json:"workload"`
	Requests int    `json:"requests"`
	Workers  int    `json:"workers"`
	Seed     uint64 `json:"seed"`
	// Objective is in milliseconds, as are all times of a Result.
	Objective float64   `json:"ttft_objective_ms"`
	Results   []*Result `json:"strategies"`
}

// WriteJSON writes the report as one indented JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, seed %d\n\n", r.title(), r.Seed)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "strategy\tTTFT mean\tp50\tp90\tp99\te2e mean\tp90\treq/s\tgood/s\tmet\thits\tcomputed\terror p50\tp90\trequests by worker\t")
	for _, s := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.3g\t%.3g\t%s\t%s\t%s\t%s\t%s\t%s\t\n", s.Strategy,
			span(s.TTFT.Mean), span(s.TTFT.P50), span(s.TTFT.P90), span(s.TTFT.P99), span(s.Total.Mean), span(s.Total.P90),
			s.Throughput, s.Goodput, percent(s.Met), percent(s.HitRatio), thousands(s.Computed),
			percent(s.ErrorP50), percent(s.ErrorP90), perWorker(s.Workers))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	within := span(r.Objective)
	if slices.ContainsFunc(r.Results, func(s *Result) bool { return len(s.Classes) > 0 }) {
		within = "the target of its class"
	}
	fmt.Fprintf(&b, "\ngood/s, met: requests whose first token came within %s; hits: prompt tokens found in a cache;\n"+
		"computed: prompt tokens computed; error: of the predicted TTFT.\n", within)
	for _, s := range r.Results {
		if err := s.writeClasses(&b); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeClasses writes how the classes did, and the tenants in them.
func (r *Result) writeClasses(b *strings.Builder) error {
	for _, part := range []struct {
		title string
		of    []ClassResult
	}{{"by class", r.Classes}, {"by tenant", r.Tenants}} {
		if len(part.of) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n%s, %s\n\n", r.Strategy, part.title)
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "class\ttenant\trequests\trefused\tmet\tgood/s\tTTFT p50\tp90\tp99\tqueued p50\tp90\twork\tof all\twhile waiting\tcame again\tserved\t")
		for _, c := range part.of {
			waiting := "-"
			if c.Contended > 0 {
				waiting = percent(c.Contended)
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%.3g\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t\n", c.Class, c.Tenant, c.Requests, c.Requests-c.Served,
				percent(c.Met), c.Goodput, span(c.TTFT.P50), span(c.TTFT.P90), span(c.TTFT.P99), span(c.Wait.P50), span(c.Wait.P90),
				thousands(c.Work), percent(c.Share), waiting, c.Returned, c.Welcome)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(r.Classes) > 0 {
		fmt.Fprintf(b, "\n%s: workers took back %d running requests for want of cache\n", r.Strategy, r.Preemptions)
		b.WriteString("\nmet, good/s: of all requests, those whose first token came within the class's target; work: tokens of work, those of\n" +
			"answers counted four times; while waiting: of the work given out while the class waited.\n")
	}
	return nil
}

// title says what was run.
func (r *Report) title() string {
	count := func(n int, noun string) string {
		if n == 1 {
			return "1 " + noun
		}
		return fmt.Sprintf("%d %ss", n, noun)
	}
	return fmt.Sprintf("%s: %s on %s", r.Workload, count(r.Requests, "request"), count(r.Workers, "worker"))
}

// span writes milliseconds to three figures.
func span(ms float64) string {
	switch {
	case ms >= 99950:
		return fmt.Sprintf("%.0f s", ms/1000)
	case ms >= 9995:
		return fmt.Sprintf("%.1f s", ms/1000)
	case ms >= 999.5:
		return fmt.Sprintf("%.2f s", ms/1000)
	case ms >= 99.95:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

func thousands(n int64) string {
	if n < 10_000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%dk", (n+500)/1000)
}

// perWorker lists the requests of up to 16 workers, beyond that the extremes.
func perWorker(w []WorkerResult) string {
	if len(w) > 16 {
		lo, hi := w[0].Requests, w[0].Requests
		for _, x := range w {
			lo, hi = min(lo, x.Requests), max(hi, x.Requests)
		}
		return fmt.Sprintf("%d to %d", lo, hi)
	}
	var s []string
	for _, x := range w {
		s = append(s, fmt.Sprint(x.Requests))
	}
	return strings.Join(s, " ")
}
