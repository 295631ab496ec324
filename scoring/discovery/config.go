package discovery

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Config paces and tunes a Checker. Start from DefaultConfig.
type Config struct {
	// Interval is the time between health checks of one worker, MetricsInterval
	// between readings of its metrics, both with a tenth of jitter. Timeout
	// bounds each call.
	Interval, MetricsInterval, Timeout time.Duration
	// LearnInterval is the time between looks at what rarely changes: models,
	// version, event sources. They are also looked at whenever the worker
	// comes up.
	LearnInterval time.Duration
	// UnhealthyAfter failed checks in a row take a worker out; a refused
	// connection does so at once. HealthyAfter passed ones bring it back; the
	// very first one is enough.
	UnhealthyAfter, HealthyAfter int
	// EjectAfter failed requests in a row set a worker aside for EjectBase,
	// doubling up to EjectMax while it goes on failing, with a tenth of jitter.
	EjectAfter          int
	EjectBase, EjectMax time.Duration
	// DrainTimeout bounds how long a removed worker stays known for the requests
	// that it still has. None of them is cut by it.
	DrainTimeout time.Duration
	// Paths are those of POST routes that workers may have or not, at most 31; they
	// are asked for the description of their routes then. See [Checker.Offered].
	Paths []string
	// Transport returns what the calls to one worker go through, one
	// per worker. nil means an own http.Transport for each.
	Transport func(Worker) http.RoundTripper
	// OnSources is called when the place where a worker publishes its cache
	// events becomes known or changes, with the whole list, and with an empty
	// one when its subscriptions must end: the worker is down, was replaced by
	// another process, or the Checker stops. It must not return before the
	// earlier subscriptions have ended. Calls for one worker never overlap.
	// nil if nobody is interested.
	OnSources func(w scoring.WorkerInfo, sources []EventSource)
	// OnName is called with true before the first worker of that name may be
	// given a request, and with false once the last one is gone, drained ones
	// included. Calls never overlap. nil if nobody is interested.
	OnName func(name string, there bool)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Interval:        2 * time.Second,
		MetricsInterval: time.Second,
		Timeout:         2 * time.Second,
		LearnInterval:   time.Minute,
		UnhealthyAfter:  3,
		HealthyAfter:    2,
		EjectAfter:      3,
		EjectBase:       5 * time.Second,
		EjectMax:        2 * time.Minute,
		DrainTimeout:    5 * time.Minute,
	}
}

// Validate reports the first setting that is out of range.
func (c *Config) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"interval", c.Interval},
		{"metrics interval", c.MetricsInterval},
		{"timeout", c.Timeout},
		{"learn interval", c.LearnInterval},
		{"eject base", c.EjectBase},
		{"eject max", c.EjectMax},
		{"drain timeout", c.DrainTimeout},
	} {
		if d.value <= 0 {
			return fmt.Errorf("cannot check workers: %s is %v, want more than 0", d.name, d.value)
		}
	}
	if len(c.Paths) > maxPaths {
		return fmt.Errorf("cannot check workers: %d paths, at most %d are possible", len(c.Paths), maxPaths)
	}
	if c.UnhealthyAfter < 1 || c.HealthyAfter < 1 || c.EjectAfter < 1 {
		return errors.New("cannot check workers: thresholds must be at least 1")
	}
	return nil
}

// Fleet is what a Checker reports to; *scoring.Fleet is one.
type Fleet interface {
	Add(now time.Time, spec scoring.WorkerSpec) (scoring.WorkerID, error)
	SetReady(now time.Time, id scoring.WorkerID, ready bool, reason string)
	SetCapacity(id scoring.WorkerID, blockSize, blocks int)
	ObserveLoad(now time.Time, id scoring.WorkerID, l scoring.Load)
	ClearView(id scoring.WorkerID, rank int)
	SetTrial(id scoring.WorkerID, on bool)
	Saturated(now time.Time, id scoring.WorkerID)
	SetAdapters(id scoring.WorkerID, adapters []string)
	SetContext(id scoring.WorkerID, tokens int)
	Retire(id scoring.WorkerID, reason string)
	InFlight(id scoring.WorkerID) int
	Remove(id scoring.WorkerID)
}
