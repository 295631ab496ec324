package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicegate/sluice/scoring"
)

// Values of Worker.Events beside an endpoint.
const (
	// EventsAuto asks the worker's /kv_event_sources.
	EventsAuto = "auto"
	// EventsNone (or "") leaves the worker without a cache view.
	EventsNone = "none"
)

// Worker is one configured vLLM server.
type Worker struct {
	// Name is unique; Pool is the pool it belongs to.
	Name, Pool string
	// URL is the root of its HTTP server, such as http://10.0.0.5:8000.
	URL string
	// Models are the names the fleet knows it by, see scoring.WorkerSpec.
	Models []string
	// Serves are the ids that /v1/models must list before the worker is ready,
	// where they differ from the names above. nil means Models[0].
	Serves []string
	// Adapters are the LoRA adapters that it may have loaded. The fleet learns
	// of each while /v1/models lists it; others are not looked at.
	Adapters []Adapter
	// Events is EventsAuto, EventsNone, or a ZeroMQ endpoint
	// (tcp://host:port). With more than one rank, rank r uses port + r.
	Events string
	// Bind says that Events is an address of ours to which the worker's
	// publisher connects. Not with EventsAuto.
	Bind bool
	// From is who may connect to a bound endpoint, see EventSource.From; empty
	// means the host of URL.
	From string
	// Replay is the replay endpoint beside a configured Events endpoint; empty
	// if the worker has none. Rank r uses port + r.
	Replay string
	// Ranks is the number of data-parallel ranks behind configured endpoints;
	// 0 means 1. With EventsAuto the worker says it.
	Ranks int
	// APIKey is sent to the worker as a bearer token, if not empty.
	APIKey string
}

// Adapter is a LoRA adapter on a worker's base model.
type Adapter struct {
	// Name is what the fleet calls it.
	Name string
	// Served is its id in the worker's /v1/models; empty means Name.
	Served string
}

func (a Adapter) served() string { return cmp.Or(a.Served, a.Name) }

// EventSource is where one data-parallel rank publishes its cache events.
type EventSource struct {
	Rank int `json:"rank"`
	// Endpoint and Replay are ZeroMQ endpoints that can be used from here;
	// Replay is empty if the worker keeps nothing to replay.
	Endpoint string `json:"endpoint"`
	Replay   string `json:"replay,omitempty"`
	// Bind says that Endpoint is ours to listen on.
	Bind bool `json:"bind,omitempty"`
	// From is who may connect to a bound Endpoint: a host name, an address or a
	// prefix such as 10.0.0.0/8.
	From string `json:"from,omitempty"`
	// Hint is what to look at when Endpoint does not answer; empty if nothing
	// is special about it.
	Hint string `json:"-"`
}

// maxRanks bounds the data-parallel ranks of a worker, as package scoring does.
const maxRanks = 256

// Validate reports what is wrong with the description.
func (w *Worker) Validate() error {
	if w.Name == "" {
		return errors.New("cannot use worker: it has no name")
	}
	if err := w.validate(); err != nil {
		return fmt.Errorf("cannot use worker %q: %w", w.Name, err)
	}
	return nil
}

func (w *Worker) validate() error {
	u, err := url.Parse(w.URL)
	switch {
	case err != nil:
		return errors.New("url is not a URL, want the root of its server, such as http://10.0.0.5:8000")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("url %q is not the root of an HTTP server, want one such as http://10.0.0.5:8000", u.Redacted())
	case u.User != nil:
		return errors.New("url holds a user name or password, want the key in its own setting")
	case len(w.Models) == 0:
		return errors.New("models is empty, want at least one name")
	case slices.ContainsFunc(w.Adapters, func(a Adapter) bool { return a.Name == "" || slices.Contains(w.Models, a.Name) }):
		return errors.New("adapters holds an empty name or one of models, want names of LoRA adapters alone")
	case w.Ranks < 0 || w.Ranks > maxRanks:
		return fmt.Errorf("ranks is %d, want 1 to %d", w.Ranks, maxRanks)
	}
	switch w.Events {
	case EventsAuto, EventsNone, "":
		if w.Replay != "" {
			return errors.New("replay is set without an events endpoint, want both or neither")
		}
		if w.Bind {
			return errors.New("bind is set without an events endpoint to listen on")
		}
		return nil
	}
	if w.From != "" && !w.Bind {
		return errors.New("from is set without bind: it says who may connect to an endpoint of ours")
	}
	_, err = w.configuredSources()
	return err
}

// configuredSources returns the sources of configured endpoints.
func (w *Worker) configuredSources() ([]EventSource, error) {
	from := ""
	if w.Bind {
		if from = w.From; from == "" {
			u, err := url.Parse(w.URL)
			if err != nil {
				return nil, errors.New("url is not a URL")
			}
			from = u.Hostname()
		}
	}
	var sources []EventSource
	for r := range max(w.Ranks, 1) {
		s := EventSource{Rank: r, Bind: w.Bind, From: from}
		var err error
		if s.Endpoint, err = addPort(w.Events, r); err != nil {
			return nil, fmt.Errorf("events: %w", err)
		}
		if w.Replay != "" {
			if s.Replay, err = addPort(w.Replay, r); err != nil {
				return nil, fmt.Errorf("replay: %w", err)
			}
		}
		sources = append(sources, s)
	}
	return sources, nil
}

// addPort returns the endpoint with its port raised by n.
func addPort(endpoint string, n int) (string, error) {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		if n > 0 {
			return "", fmt.Errorf("%q has no port that could count the ranks, want tcp", endpoint)
		}
		return endpoint, nil
	}
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(rest)
	if !ok || err != nil {
		return "", fmt.Errorf("%q is no endpoint, want tcp://host:port", endpoint)
	}
	p, err := strconv.Atoi(port)
	if err != nil || p < 1 || p+n > 65535 {
		return "", fmt.Errorf("%q has a port outside 1 to 65535", endpoint)
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(p+n)), nil
}

// address is what two descriptions of one server have in common.
func (w *Worker) address() string { return strings.TrimRight(w.URL, "/") }

// equal reports whether two descriptions are the same in everything.
func (w *Worker) equal(o *Worker) bool { return reflect.DeepEqual(w, o) }

// wants returns the model ids that the worker has to list.
func (w *Worker) wants() []string {
	if w.Serves != nil {
		return w.Serves
	}
	return w.Models[:1]
}

func (w *Worker) spec() scoring.WorkerSpec {
	return scoring.WorkerSpec{
		Name:    w.Name,
		Pool:    w.Pool,
		Address: w.URL,
		Models:  slices.Clone(w.Models),
	}
}
