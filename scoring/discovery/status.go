package discovery

import (
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Status is what the Checker knows about one worker.
type Status struct {
	ID   scoring.WorkerID `json:"id"`
	Name string           `json:"name"`
	Pool string           `json:"pool"`
	URL  string           `json:"url"`
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
	EjectedUntil time.Time `json:"ejected_until"`
	// Failures counts reported request failures, Ejections how often the
	// worker was set aside, Restarts how often its process was replaced.
	Failures  uint64 `json:"failures"`
	Ejections uint64 `json:"ejections"`
	Restarts  uint64 `json:"restarts"`
	// Version is what the worker says, Models what it serves.
	Version string   `json:"version,omitempty"`
	Models  []string `json:"models,omitempty"`
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
