package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"
)

// report is the file of results.
type report struct {
	Started   time.Time         `json:"started"`
	Arguments []string          `json:"arguments"`
	Machine   string            `json:"machine"`
	Disk      quantiles         `json:"fdatasync_us"` // of 4 KiB, one after another
	Figures   []*figure         `json:"figures"`
	Absent    map[string]string `json:"absent,omitempty"` // cell and system, and why
}

func (r *report) absent(cell, system string, err error) {
	if r.Absent == nil {
		r.Absent = make(map[string]string)
	}
	r.Absent[cell+" "+system] = err.Error()
}

// measureDisk times flushes where the ledger will be: a row is durable before its
// answer ends, so no answer is faster than one.
func (r *report) measureDisk(dir string) error {
	f, err := os.Create(filepath.Join(dir, "flush"))
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 4096)
	var took []float64
	for range 1000 {
		if _, err := f.Write(block); err != nil {
			return err
		}
		began := time.Now()
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return fmt.Errorf("cannot flush %s: %w", f.Name(), err)
		}
		took = append(took, micros(time.Since(began)))
	}
	r.Disk = quantilesOf(took)
	return nil
}

func (f *figure) line() string {
	s := fmt.Sprintf("%-14s %-16s %-16s round %d:", f.Cell, f.System, f.At, f.Round)
	if q := f.Sample; q != nil {
		s += fmt.Sprintf(" %.0f/s, last byte p50 %.0f p99 %.0f us, text p50 %.0f p99 %.0f us, late p99 %.0f us, failed %d, dropped %d",
			q.Rate, q.Last.P50, q.Last.P99, q.First.P50, q.First.P99, q.Late.P99, q.Failed, q.Dropped)
		if len(q.Failures) > 0 {
			s += fmt.Sprintf(" %v", q.Failures)
		}
	}
	return s + fmt.Sprintf(" cpu %.0f us, rss %.1f MB, others %.1f %%", f.CPU, float64(f.RSS)/1e6, 100*f.Others)
}

// middle is the median of the rounds, and what lies between the least and the most of them.
type middle struct{ median, least, most float64 }

func middleOf(v []float64) middle {
	if len(v) == 0 {
		return middle{}
	}
	slices.Sort(v)
	return middle{v[len(v)/2], v[0], v[len(v)-1]}
}

func (m middle) String() string {
	if m.least == m.most {
		return fmt.Sprintf("%.0f", m.median)
	}
	return fmt.Sprintf("%.0f (%.0f-%.0f)", m.median, m.least, m.most)
}

func (r *report) values(cell, system, at string, value func(*figure) float64) middle {
	var v []float64
	for _, f := range r.Figures {
		if f.Cell == cell && f.System == system && f.At == at {
			v = append(v, value(f))
		}
	}
	return middleOf(v)
}

// print writes a table for each cell: medians of the rounds, with the least and the most.
func (r *report) print(w io.Writer, p *plan) {
	fmt.Fprintf(w, "%s\nfdatasync of 4 KiB: p50 %.0f us, p90 %.0f us, p99 %.0f us\n", r.Machine, r.Disk.P50, r.Disk.P90, r.Disk.P99)
	for _, c := range p.cells {
		fmt.Fprintf(w, "\n%s\n", c)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "system\tat\trequests/s\tlast byte p50 us\tp99 us\tfirst text p50 us\tp99 us\tcpu us\trss MB\tlate p99 us\tfailed\tothers %")
		for _, key := range r.keys(c) {
			of := func(value func(*figure) float64) middle { return r.values(c, key[0], key[1], value) }
			sampled := func(value func(*sample) float64) middle {
				return of(func(f *figure) float64 {
					if f.Sample == nil {
						return 0
					}
					return value(f.Sample)
				})
			}
			fmt.Fprintf(tw, "%s\t%s\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\n", key[0], key[1],
				sampled(func(s *sample) float64 { return s.Rate }),
				sampled(func(s *sample) float64 { return s.Last.P50 }), sampled(func(s *sample) float64 { return s.Last.P99 }),
				sampled(func(s *sample) float64 { return s.First.P50 }), sampled(func(s *sample) float64 { return s.First.P99 }),
				of(func(f *figure) float64 { return f.CPU }), of(func(f *figure) float64 { return float64(f.RSS) / 1e6 }),
				sampled(func(s *sample) float64 { return s.Late.P99 }), sampled(func(s *sample) float64 { return float64(s.Failed + s.Dropped) }),
				of(func(f *figure) float64 { return 100 * f.Others }))
		}
		_ = tw.Flush() // to a writer that keeps its own error
	}
	for what, why := range r.Absent {
		fmt.Fprintf(w, "\nnot measured: %s: %s\n", what, why)
	}
}

// keys are a cell's systems with what they were measured at, in order of appearance.
func (r *report) keys(cell string) [][2]string {
	var keys [][2]string
	for _, f := range r.Figures {
		key := [2]string{f.System, f.At}
		if f.Cell == cell && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
