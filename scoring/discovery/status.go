package discovery

import (
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// State is a worker's state in a word.
type State string

// The states of a worker. Only StateReady and StateTrial can be picked.
const (
	// StateNew: not checked yet.
	StateNew State = "new"
	// StateReady: may be picked.
	StateReady State = "ready"
	// StateTrial: has come back, and gets one request at a time until one has
	// gone well.
	StateTrial State = "trial"
	// StateDown: its health checks fail.
	StateDown State = "down"
	// StateUnusable: it is healthy, but does not serve what it is configured for.
	StateUnusable State = "unusable"
	// StateEjected: set aside for failed requests.
	StateEjected State = "ejected"
	// StateDraining: removed from its list, finishing the requests it has.
	StateDraining State = "draining"
)

// States lists all states.
func States() []State {
	return []State{StateNew, StateReady, StateTrial, StateDown, StateUnusable, StateEjected, StateDraining}
}

// Status is what the Checker knows about one worker.
type Status struct {
	ID   scoring.WorkerID `json:"id"`
	Name string           `json:"name"`
	Pool string           `json:"pool"`
	URL  string           `json:"url"`
	// Source is the kind of list it comes from, StaticSource for the
	// configuration itself.
	Source string `json:"source"`
	State  State  `json:"state"`
	// Ready says whether it may be picked, Reason why not (or, while ready,
	// what is amiss), Since when Ready last changed.
	Ready  bool      `json:"ready"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	// Healthy is the verdict of the health checks alone.
	Healthy   bool      `json:"healthy"`
	LastCheck time.Time `json:"last_check"`
	LastPass  time.Time `json:"last_pass"`
	// EjectedUntil is set while the worker is set aside for failed requests.
	EjectedUntil time.Time `json:"ejected_until,omitzero"`
	// DrainingUntil is when a removed worker is forgotten at the latest.
	DrainingUntil time.Time `json:"draining_until,omitzero"`
	// Failures counts reported request failures, Ejections how often the
	// worker was set aside, Restarts how often its process was replaced.
	Failures  uint64 `json:"failures"`
	Ejections uint64 `json:"ejections"`
	Restarts  uint64 `json:"restarts"`
	// Version is what the worker says, Models what it serves (the first hundred
	// names), Adapters which of its configured LoRA adapters are loaded.
	Version  string   `json:"version,omitempty"`
	Models   []string `json:"models,omitempty"`
	Adapters []string `json:"adapters,omitempty"`
	// Context is how many tokens a prompt and its answer can have together; 0 where it
	// does not say.
	Context int `json:"max_model_len,omitempty"`
	// Endpoints are those of Config.Paths that it has routes for; none where it does
	// not describe itself.
	Endpoints []string `json:"endpoints,omitempty"`
	// Sources is where its cache events come from; SourcesReason says why
	// there are none.
	Sources       []EventSource `json:"sources,omitempty"`
	SourcesReason string        `json:"sources_reason,omitempty"`
	// Engine is its last metrics, read at EngineAt; EngineErr says why the
	// last attempt failed.
	Engine    Metrics   `json:"engine"`
	EngineAt  time.Time `json:"engine_at"`
	EngineErr string    `json:"engine_error,omitempty"`
}

// SourceStatus is what the Checker knows about one dynamic list of workers.
type SourceStatus struct {
	Pool string `json:"pool"`
	// Kind is how it is found: file, dns.
	Kind string `json:"kind"`
	// Workers counts those of the list in force, Draining those it has lost that
	// still have requests.
	Workers  int `json:"workers"`
	Draining int `json:"draining"`
	// Updates counts the lists that came, Failures the times that none came or
	// that not all of it could be used.
	Updates  uint64 `json:"updates"`
	Failures uint64 `json:"failures"`
	// LastUpdate is when the last list came, LastChange when one last differed
	// from the one before.
	LastUpdate time.Time `json:"last_update,omitzero"`
	LastChange time.Time `json:"last_change,omitzero"`
	// Error says what is wrong with the latest answer; empty while all is well.
	Error string `json:"error,omitempty"`
}
