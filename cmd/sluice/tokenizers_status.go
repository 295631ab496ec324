package main

import (
	"maps"
	"slices"
	"time"

	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/scoring/tokenize/verify"
)

// tokenState says who computes a model's token ids, and how far that is
// trusted.
type tokenState int

const (
	// tokensUnverified: a local tokenizer is loaded and was not yet compared
	// with a worker.
	tokensUnverified tokenState = iota
	// tokensVerified: the local tokenizer agreed with a worker.
	tokensVerified
	// tokensPartial: it disagreed about some shapes of requests, for which a
	// worker's /tokenize is asked.
	tokensPartial
	// tokensMismatch: it disagreed about all of them.
	tokensMismatch
	// tokensRemote: a worker's /tokenize is asked, as there is no local
	// tokenizer.
	tokensRemote
	// tokensLoading: a worker's /tokenize is asked until the local tokenizer is
	// there.
	tokensLoading
)

// tokenStates are all states by name.
var tokenStates = [...]string{"unverified", "verified", "partial", "mismatch", "remote", "loading"}

// String is the state's name in metrics and on debug pages.
func (s tokenState) String() string { return tokenStates[s] }

// state sums up the verdicts on a model's shapes.
func (m *modelTokenizer) state() tokenState {
	if m.loading.Load() {
		return tokensLoading
	}
	local := m.here.Load()
	if local == nil {
		return tokensRemote
	}
	st := local.checker.Status()
	wrong, judged := 0, 0
	for i := range st.Shapes {
		switch st.Shapes[i].State {
		case verify.Mismatch:
			wrong++
			judged++
		case verify.Verified:
			judged++
		}
	}
	switch {
	case !st.Compared && wrong == 0:
		return tokensUnverified
	case wrong == 0:
		return tokensVerified
	case wrong == judged:
		return tokensMismatch
	}
	return tokensPartial
}

// tokensPage says who computes a model's token ids, for how many requests, and
// what the comparisons with the workers found.
type tokensPage struct {
	State    string           `json:"state"`
	Requests map[string]int64 `json:"requests_by_source"`
	// BytesPerToken is what estimates for routing go by, as learned from answers.
	BytesPerToken float64 `json:"bytes_per_token"`
	// Disagreed counts answers whose usage says another prompt length, Dropped the
	// samples for which there was no room.
	Disagreed int64       `json:"answers_of_another_length"`
	Dropped   int64       `json:"dropped_samples"`
	Whole     string      `json:"encoded_whole_because,omitempty"`
	Memo      *memoPage   `json:"memo,omitempty"`
	Shapes    []shapePage `json:"shapes,omitempty"`
}

// memoPage is the memory of encoded segments.
type memoPage struct {
	Bytes     int64  `json:"bytes"`
	Entries   int    `json:"entries"`
	Hits      uint64 `json:"hits"`
	Misses    uint64 `json:"misses"`
	Evictions uint64 `json:"evictions"`
}

// shapePage is the verdict on one shape of requests. Of a disagreement it tells
// where the ids differed first, never what they stand for.
type shapePage struct {
	Shape     string            `json:"shape"`
	State     string            `json:"state"`
	Probes    int64             `json:"probes"`
	Samples   int64             `json:"samples"`
	Agreed    int64             `json:"agreed"`
	Disagreed int64             `json:"disagreed"`
	Undecided int64             `json:"undecided"`
	Last      *disagreementPage `json:"last_disagreement,omitempty"`
}

type disagreementPage struct {
	Worker string    `json:"worker"`
	At     int       `json:"first_different_id"`
	When   time.Time `json:"time"`
}

// tokenizePage is the state of one worker's /tokenize.
type tokenizePage struct {
	Breaker  string `json:"breaker"`
	UnderWay int    `json:"under_way"`
	Answered int64  `json:"answered"`
	Refused  int64  `json:"refused"`
	Failed   int64  `json:"failed"`
	Busy     int64  `json:"not_asked_busy"`
	Broken   int64  `json:"not_asked_broken"`
}

// pages are all models for /debug/workers, by name.
func (t *tokenizers) pages() map[string]tokensPage {
	out := make(map[string]tokensPage, len(t.models))
	for name, m := range t.models {
		out[name] = m.page()
	}
	return out
}

func (m *modelTokenizer) page() tokensPage {
	p := tokensPage{State: m.state().String(), Requests: make(map[string]int64), BytesPerToken: m.ratio.bytesPerToken()}
	for i, source := range tokenSources {
		p.Requests[source] = m.used[i].Load()
	}
	local := m.here.Load()
	if local == nil {
		return p
	}
	memo, st := local.Stats(), local.checker.Status()
	p.Memo = &memoPage{memo.CacheBytes, memo.CacheEntries, memo.Hits, memo.Misses, memo.Evictions}
	p.Whole, p.Disagreed, p.Dropped = local.Whole(), st.Disagreements, st.Dropped
	for _, s := range st.Shapes {
		sp := shapePage{
			Shape: s.Shape.String(), State: s.State.String(), Probes: s.Probes, Samples: s.Samples,
			Agreed: s.Agreed, Disagreed: s.Disagreed, Undecided: s.Undecided,
		}
		if !s.When.IsZero() {
			sp.Last = &disagreementPage{s.Worker, s.At, s.When}
		}
		p.Shapes = append(p.Shapes, sp)
	}
	return p
}

// remoteWorkers is the state of the workers' /tokenize by the workers' names. Workers
// that are gone are forgotten.
func (t *tokenizers) remoteWorkers() map[string]tokenize.RemoteWorker {
	names := t.roster.addresses()
	t.remote.Keep(slices.Collect(maps.Keys(names)))
	out := make(map[string]tokenize.RemoteWorker)
	for _, w := range t.remote.Workers() {
		if name := names[w.URL]; name != "" {
			out[name] = w
		}
	}
	return out
}

func newTokenizePage(w tokenize.RemoteWorker) *tokenizePage {
	return &tokenizePage{w.Breaker, w.UnderWay, w.Answered, w.Refused, w.Failed, w.Busy, w.Broken}
}
