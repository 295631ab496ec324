package scoring

import (
	"slices"
	"time"
)

// predictions is a ring of the most recent picks. Guarded by Fleet.mu.
type predictions struct {
	// records is full length from the start; a record's candidates keep their
	// memory when it is written over.
	records []PredictionRecord
	seq     uint64 // of the newest, counted from 1
}

// next returns the record to fill for a new pick, nil when none are kept.
func (p *predictions) next() *PredictionRecord {
	if len(p.records) == 0 {
		return nil
	}
	p.seq++
	r := &p.records[p.seq%uint64(len(p.records))]
	*r = PredictionRecord{Seq: p.seq, Candidates: r.Candidates[:0]}
	return r
}

// find returns a record that is still kept.
func (p *predictions) find(seq uint64) *PredictionRecord {
	if seq == 0 || len(p.records) == 0 {
		return nil
	}
	if r := &p.records[seq%uint64(len(p.records))]; r.Seq == seq {
		return r
	}
	return nil
}

// copy returns the kept records, oldest first.
func (p *predictions) copy() []PredictionRecord {
	var out []PredictionRecord
	for i := range p.records {
		r := p.records[(p.seq+1+uint64(i))%uint64(len(p.records))]
		if r.Seq != 0 {
			r.Candidates = slices.Clone(r.Candidates)
			out = append(out, r)
		}
	}
	return out
}

// recentErrors is a window over the relative errors of all workers' predictions.
type recentErrors struct {
	window [512]float32
	n      int
}

func (e *recentErrors) add(actual, predicted time.Duration) {
	off := max(actual-predicted, predicted-actual)
	e.window[e.n%len(e.window)] = float32(off.Seconds() / actual.Seconds())
	e.n++
}

// quantiles returns the 50th and 90th percentile, 0 before the first error.
func (e *recentErrors) quantiles() (p50, p90 float64) {
	n := min(e.n, len(e.window))
	if n == 0 {
		return 0, 0
	}
	sorted := e.window
	slices.Sort(sorted[:n])
	return float64(sorted[(n-1)/2]), float64(sorted[(n*9-1)/10])
}
