package main

import (
	"fmt"
	"maps"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
	"github.com/sluicegate/sluice/scoring/kvevents"
)

// millis is a duration in milliseconds, as the debug pages show it.
type millis float64

func inMillis(d time.Duration) millis { return millis(float64(d.Microseconds()) / 1000) }

// workerPage is one worker on /debug/workers: what the health checks know,
// what the scorer knows, and how its cache events come in.
type workerPage struct {
	Health  discovery.Status `json:"health"`
	Load    loadPage         `json:"load"`
	Learned learnedPage      `json:"learned"`
	Views   []viewPage       `json:"views"`
	Events  []eventsPage     `json:"events"`
	// Tokenize is absent for a worker that was never asked for token ids.
	Tokenize *tokenizePage `json:"tokenize,omitempty"`
}

// loadPage is what a worker has in hand: by this gateway's own account, and as
// it said itself.
type loadPage struct {
	InFlight      int       `json:"in_flight"`
	Prefilling    int       `json:"prefilling"`
	PrefillTokens int       `json:"prefill_tokens_ahead"`
	Running       int       `json:"reported_running"`
	Waiting       int       `json:"reported_waiting"`
	KVUsage       float64   `json:"reported_kv_usage"`
	ReportedAt    time.Time `json:"reported_at"`
	Picks         int64     `json:"picks"`
	Failures      int64     `json:"failures"`
}

// learnedPage is what the prediction of a worker's first tokens rests on.
type learnedPage struct {
	Base        millis  `json:"base_ms"`
	PerKilo     millis  `json:"per_1000_tokens_ms"`
	PerSeq      millis  `json:"per_running_sequence_ms"`
	Attention   millis  `json:"attention_ms"`
	Speed       float64 `json:"speed_factor"`
	FirstTokens int64   `json:"first_tokens"`
	ErrorP50    float64 `json:"actual_over_predicted_p50"`
	ErrorP90    float64 `json:"actual_over_predicted_p90"`
}

// viewPage is the view of one rank's cache, in blocks.
type viewPage struct {
	Rank      int    `json:"rank"`
	State     string `json:"state"`
	BlockSize int    `json:"block_size"`
	Capacity  int    `json:"capacity"`
	Groups    int    `json:"groups"`
	GPU       int    `json:"gpu"`
	CPU       int    `json:"cpu"`
	Disk      int    `json:"disk"`
	Held      int    `json:"held_back"`
}

// eventsPage is one subscription to a rank's cache events.
type eventsPage struct {
	Rank     string `json:"rank"`
	Endpoint string `json:"endpoint"`
	// Bound says that the endpoint is the gateway's, to which the worker connects.
	Bound     bool      `json:"bound,omitempty"`
	Replay    string    `json:"replay,omitempty"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	State     string    `json:"state"`
	Next      uint64    `json:"next_sequence"`
	// Queued counts live batches that wait for a replay.
	Queued    int       `json:"queued"`
	LastBatch time.Time `json:"last_batch"`
	Batches   uint64    `json:"batches"`
	Events    uint64    `json:"events"`
	Skipped   uint64    `json:"skipped_events"`
	// SkippedBy names the reasons, those alone that occurred.
	SkippedBy   map[string]uint64 `json:"skipped_by_reason,omitempty"`
	BadMessages uint64            `json:"bad_messages"`
	BadBatches  uint64            `json:"bad_batches"`
	Gaps        uint64            `json:"gaps"`
	Replays     uint64            `json:"replays"`
	// Incidents are what may have cost a part of the view, those alone that occurred.
	Incidents     map[string]uint64 `json:"incidents,omitempty"`
	Overlaps      uint64            `json:"overlaps"`
	OtherRank     uint64            `json:"batches_of_another_rank"`
	Connects      uint64            `json:"connects"`
	ConnectErrors uint64            `json:"connect_errors"`
	Error         string            `json:"error,omitempty"`
}

// fleetPage sums over all workers.
type fleetPage struct {
	Picks        int64   `json:"picks"`
	PromptTokens int64   `json:"prompt_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	Blocks       int     `json:"blocks"`
	IndexBytes   int     `json:"index_bytes"`
	ErrorP50     float64 `json:"prediction_error_p50"`
	ErrorP90     float64 `json:"prediction_error_p90"`
}

// debugWorkers is GET /debug/workers.
func (a *app) debugWorkers() any {
	snapshots := make(map[scoring.WorkerID]scoring.WorkerSnapshot)
	for _, w := range a.fleet.Snapshot(time.Now()) {
		snapshots[w.Worker.ID] = w
	}
	events := make(map[string][]eventsPage)
	for _, s := range a.subs.stats() {
		events[s.worker] = append(events[s.worker], newEventsPage(s))
	}
	asked := a.tokens.remoteWorkers()
	workers := []workerPage{}
	for _, st := range a.checker.Snapshot() {
		w := snapshots[st.ID]
		workers = append(workers, workerPage{
			Health: st, Load: newLoadPage(&w), Learned: newLearnedPage(&w), Views: newViewPages(&w), Events: events[st.Name],
		})
		if remote, ok := asked[st.Name]; ok {
			workers[len(workers)-1].Tokenize = newTokenizePage(remote)
		}
		if st.State == discovery.StateDraining {
			workers[len(workers)-1].Events = nil // those are its successor's
		}
	}
	st := a.fleet.Stats()
	return struct {
		Workers []workerPage             `json:"workers"`
		Lists   []discovery.SourceStatus `json:"lists"`
		Tokens  map[string]tokensPage    `json:"tokenizers"`
		Fleet   fleetPage                `json:"fleet"`
	}{workers, a.checker.Sources(), a.tokens.pages(), fleetPage{
		Picks: st.Picks, PromptTokens: st.PromptTokens, CachedTokens: st.CachedTokens,
		Blocks: st.Blocks, IndexBytes: st.Bytes, ErrorP50: st.ErrorP50, ErrorP90: st.ErrorP90,
	}}
}

func newEventsPage(s kvSource) eventsPage {
	skipped := make(map[string]uint64)
	for reason, n := range s.Skipped {
		if n > 0 {
			skipped[kvevents.SkipReason(reason).String()] = n
		}
	}
	incidents := s.incidents()
	maps.DeleteFunc(incidents, func(_ string, n uint64) bool { return n == 0 })
	return eventsPage{
		Rank: s.rank, Endpoint: s.source.Endpoint, Bound: s.source.Bind, Replay: s.source.Replay,
		Connected: s.Connected, Since: s.Since, State: s.View.String(), Next: s.Next, Queued: s.Queued, LastBatch: s.LastBatch,
		Batches: s.Machine.Applied, Events: s.Events, Skipped: s.Skipped.Total(), SkippedBy: skipped,
		BadMessages: s.BadMessages, BadBatches: s.BadBatches, Gaps: s.Machine.Gaps, Replays: s.Machine.Replays,
		Incidents: incidents, Overlaps: s.Machine.Overlaps, OtherRank: s.OtherRank,
		Connects: s.Connects, ConnectErrors: s.ConnectErrors, Error: s.Err,
	}
}

func newLoadPage(w *scoring.WorkerSnapshot) loadPage {
	return loadPage{
		InFlight: w.InFlight, Prefilling: w.Prefilling, PrefillTokens: w.Ahead,
		Running: w.Load.Running, Waiting: w.Load.Waiting, KVUsage: w.Load.KVUsage, ReportedAt: w.LoadObserved,
		Picks: w.Picks, Failures: w.Failures,
	}
}

func newLearnedPage(w *scoring.WorkerSnapshot) learnedPage {
	c := w.Coefficients
	return learnedPage{
		Base: inMillis(c.Base), PerKilo: inMillis(c.PerKilo), PerSeq: inMillis(c.PerSeq), Attention: inMillis(c.Attention),
		Speed: w.Speed, FirstTokens: w.Trained, ErrorP50: w.ErrorP50, ErrorP90: w.ErrorP90,
	}
}

func newViewPages(w *scoring.WorkerSnapshot) []viewPage {
	out := make([]viewPage, len(w.Views))
	for i, v := range w.Views {
		out[i] = viewPage{
			Rank: v.Rank, State: v.State.String(), BlockSize: v.BlockSize, Capacity: v.Capacity,
			Groups: v.Groups, GPU: v.GPU, CPU: v.CPU, Disk: v.Disk, Held: v.Held,
		}
	}
	return out
}

// pickPage is one recent pick on /debug/predictions: what each worker was
// predicted to take, which won, and what came of it.
type pickPage struct {
	Seq         uint64          `json:"seq"`
	Picked      time.Time       `json:"picked"`
	Model       string          `json:"model"`
	Prompt      int             `json:"prompt_tokens"`
	TokensKnown bool            `json:"tokens_known"`
	Winner      string          `json:"winner"`
	Why         string          `json:"why"`
	Outcome     string          `json:"outcome"`
	Actual      millis          `json:"actual_ms,omitempty"`
	Candidates  []candidatePage `json:"candidates"`
}

// candidatePage is one worker's prediction. Base, wait and prefill sum to it;
// the winner has the least of it plus delay, what later requests would lose.
type candidatePage struct {
	Worker    string `json:"worker"`
	Predicted millis `json:"predicted_ms"`
	P90       millis `json:"p90_ms"`
	Base      millis `json:"base_ms"`
	Wait      millis `json:"wait_ms"`
	Prefill   millis `json:"prefill_ms"`
	Delay     millis `json:"delay_ms"`
	Cached    int    `json:"cached_tokens"`
	Assumed   int    `json:"assumed_tokens,omitempty"`
	Ahead     int    `json:"prefill_tokens_ahead"`
	Running   int    `json:"running_sequences"`
}

// debugPredictions is GET /debug/predictions: the recent picks, oldest first.
func (a *app) debugPredictions() any {
	names := make(map[scoring.WorkerID]string)
	for _, w := range a.fleet.Snapshot(time.Now()) {
		names[w.Worker.ID] = w.Worker.Name
	}
	name := func(id scoring.WorkerID) string {
		if n, ok := names[id]; ok {
			return n
		}
		return fmt.Sprintf("removed worker %d", id)
	}
	picks := []pickPage{}
	for _, r := range a.fleet.Predictions() {
		p := pickPage{
			Seq: r.Seq, Picked: r.Picked, Model: r.Model, Prompt: r.Prompt, TokensKnown: r.TokensKnown,
			Winner: name(r.Winner), Why: r.Why.String(), Outcome: "in_flight", Actual: inMillis(r.Actual),
		}
		if r.Outcome != 0 {
			p.Outcome = r.Outcome.String()
		}
		for _, c := range r.Candidates {
			p.Candidates = append(p.Candidates, candidatePage{
				Worker: name(c.Worker), Predicted: inMillis(c.Total), P90: inMillis(c.P90),
				Base: inMillis(c.Base), Wait: inMillis(c.Wait), Prefill: inMillis(c.Prefill), Delay: inMillis(c.Delay),
				Cached: c.Cached, Assumed: c.Assumed, Ahead: c.Ahead, Running: c.Running,
			})
		}
		picks = append(picks, p)
	}
	return struct {
		Picks []pickPage `json:"picks"`
	}{picks}
}
