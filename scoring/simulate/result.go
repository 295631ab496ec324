package simulate

import (
	"slices"
	"time"
)

// Result is how one strategy did.
type Result struct {
	Strategy string `json:"strategy"`
	// Requests are those that the figures below are of: all but the warm-up.
	Requests int `json:"requests"`
	// TTFT and Total are from arrival to the first and to the last token.
	TTFT  Times `json:"ttft_ms"`
	Total Times `json:"e2e_ms"`
	// TPOT is the time from one token of an answer to the next, averaged over
	// the answer; answers of one token are left out.
	TPOT Times `json:"tpot_ms"`
	// Seconds is the virtual time from the first of the requests to the last
	// one's end, Throughput the requests a second over it, Goodput those of them
	// that met the objective for TTFT, and Met their share.
	Seconds    float64 `json:"seconds"`
	Throughput float64 `json:"throughput_rps"`
	Goodput    float64 `json:"goodput_rps"`
	Met        float64 `json:"objective_met"`
	// HitRatio is the share of prompt tokens that the engines found in their
	// caches, of all requests, warm-up included; Prompt and Computed count them.
	// Computed includes what was computed again after a preemption.
	HitRatio float64 `json:"hit_ratio"`
	Prompt   int64   `json:"prompt_tokens"`
	Computed int64   `json:"prompt_tokens_computed"`
	// ErrorP50 and ErrorP90 are quantiles of |TTFT - predicted| / TTFT.
	ErrorP50 float64 `json:"prediction_error_p50"`
	ErrorP90 float64 `json:"prediction_error_p90"`
	// Preemptions counts requests that lost their blocks, and came back.
	Preemptions int64          `json:"preemptions"`
	Workers     []WorkerResult `json:"workers"`
	// Classes and Tenants are how each class did, and each tenant in it, with a
	// queue. A request must then meet its class's target instead of the objective.
	Classes []ClassResult `json:"classes,omitempty"`
	Tenants []ClassResult `json:"tenants,omitempty"`
	// Samples holds every request in the order of the plan.
	Samples []Sample `json:"-"`
	// Refusals are those of the queue, in the order in which they were told.
	Refusals []Refused `json:"-"`
}

// WorkerResult is what one worker did.
type WorkerResult struct {
	Requests int   `json:"requests"`
	Prompt   int64 `json:"prompt_tokens"`
	Computed int64 `json:"prompt_tokens_computed"`
	// Busy is the share of time it spent in steps.
	Busy float64 `json:"busy"`
}

// Times are statistics of durations, in milliseconds.
type Times struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// times sorts d and sums it up.
func times(d []time.Duration) Times {
	if len(d) == 0 {
		return Times{}
	}
	slices.Sort(d)
	sum := 0.0
	for _, v := range d {
		sum += float64(v)
	}
	ms := func(v float64) float64 { return v / float64(time.Millisecond) }
	at := func(q float64) float64 { return ms(float64(d[rank(len(d), q)])) }
	return Times{Mean: ms(sum / float64(len(d))), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: at(1)}
}

// rank is the index of the q-quantile among n sorted values: the least one that
// at least that share of them does not exceed.
func rank(n int, q float64) int {
	i := int(q * float64(n))
	if float64(i) == q*float64(n) {
		i--
	}
	return min(max(i, 0), n-1)
}

// result sums the run up.
func (m *sim) result(s Strategy) *Result {
	r := &Result{Strategy: s.String(), Samples: m.record}
	m.sumWorkers(r)
	m.sumSamples(r)
	if m.queue != nil {
		m.sumClasses(r)
		r.Refusals = m.queue.refused
	}
	return r
}

// objective is the TTFT that request i must meet.
func (m *sim) objective(i int) time.Duration {
	if m.queue != nil {
		return m.cfg.QoS.Classes[m.plan.Requests[i].Class].Target
	}
	return m.cfg.Objective
}

// sumWorkers adds up what the engines counted.
func (m *sim) sumWorkers(r *Result) {
	for _, n := range m.nodes {
		st := n.eng.Stats()
		w := WorkerResult{Requests: n.requests, Prompt: int64(st.Queried), Computed: int64(n.computed)}
		if m.end > 0 {
			w.Busy = n.busyTime.Seconds() / m.end.Seconds()
		}
		r.Workers = append(r.Workers, w)
		r.Prompt += w.Prompt
		r.Computed += w.Computed
		r.HitRatio += float64(st.Hits)
		r.Preemptions += int64(st.Preemptions)
	}
	r.HitRatio /= float64(r.Prompt)
}

// sumSamples sums up the requests after the warm-up.
func (m *sim) sumSamples(r *Result) {
	measured := m.record[min(m.cfg.Warmup, len(m.record)):]
	r.Requests = len(measured)
	if len(measured) == 0 {
		return
	}
	var ttft, total, gap []time.Duration
	var errs []float64
	first, last, met := never, time.Duration(0), 0
	for i := range measured {
		s := &measured[i]
		if s.Refused {
			continue
		}
		ttft, total = append(ttft, s.TTFT), append(total, s.Total)
		if s.Output > 1 {
			gap = append(gap, (s.Total-s.TTFT)/time.Duration(s.Output-1))
		}
		sent := s.TTFT - s.Queued // from when it was given to the worker
		off := max(sent-s.Predicted, s.Predicted-sent)
		errs = append(errs, off.Seconds()/sent.Seconds())
		first, last = min(first, s.Sent), max(last, s.Sent+s.Total)
		if s.TTFT <= m.objective(m.cfg.Warmup+i) {
			met++
		}
	}
	if len(ttft) == 0 {
		return
	}
	r.TTFT, r.Total, r.TPOT = times(ttft), times(total), times(gap)
	slices.Sort(errs)
	r.ErrorP50, r.ErrorP90 = errs[rank(len(errs), 0.5)], errs[rank(len(errs), 0.9)]
	r.Met = float64(met) / float64(len(measured))
	r.Seconds = (last - first).Seconds()
	r.Throughput = float64(len(ttft)) / r.Seconds
	r.Goodput = float64(met) / r.Seconds
}
