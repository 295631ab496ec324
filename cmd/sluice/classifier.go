package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/policy/classify"
	"github.com/sluicegate/sluice/policy/classify/remote"
)

// scanner finds content labels for the gateway: the detectors of a configuration. It implements
// gateway.Classifier.
type scanner struct {
	cfg        *LabelsConfig
	classifier *classify.Classifier
	external   []*external

	mu     sync.Mutex     // protects what follows
	old    *scanner       // the one that this one came after, which counts on while requests that it began run; nil for none
	before classify.Stats // of those before that
}

// external is a detector outside of this process with what it was made of.
type external struct {
	*remote.Detector
	cfg ExternalLabelConfig
	key string
}

// newScanner returns the scanner of a configuration, nil if it has no detectors. old is the scanner in force,
// if there is one: what has not changed is taken from it, with its connections and the bound on its
// questions, and counters go on.
func newScanner(c *LabelsConfig, old *scanner, log *slog.Logger) (*scanner, error) {
	if !c.scans() {
		return nil, nil
	}
	s := &scanner{cfg: c}
	var errs []error
	var list []classify.External
	for i := range c.External {
		e, err := newExternal(&c.External[i], old, log)
		if err != nil {
			errs = append(errs, fmt.Errorf("labels.external[%d]: %w", i, err))
			continue
		}
		s.external, list = append(s.external, e), append(list, e)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if old != nil && reflect.DeepEqual(old.cfg, c) && slices.Equal(old.external, s.external) {
		return old, nil
	}
	var err error
	if s.classifier, err = classify.New(c.classifier(list)); err != nil {
		return nil, fmt.Errorf("cannot use the detectors of labels: %w", err)
	}
	if old != nil {
		old.letGo()
		s.old = old
	}
	return s, nil
}

// letGo forgets the scanner that this one came after, but for what it has counted.
func (s *scanner) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before, s.old = s.earlierLocked(), nil
}

// earlierLocked returns the totals of the scanners before this one, of what this one is configured for.
func (s *scanner) earlierLocked() classify.Stats {
	var total classify.Stats
	addStats(&total, s.before)
	if s.old != nil {
		addStats(&total, s.old.stats())
	}
	keepStats(&total, s.cfg)
	return total
}

// newExternal returns a detector, or the one that old has of the same configuration.
func newExternal(c *ExternalLabelConfig, old *scanner, log *slog.Logger) (*external, error) {
	e := &external{cfg: *c}
	if c.APIKeyFile != "" {
		var err error
		if e.key, err = readSecretText(c.APIKeyFile); err != nil {
			return nil, fmt.Errorf("cannot read apiKeyFile: %w", err)
		}
	}
	if old != nil {
		for _, o := range old.external {
			if o.key == e.key && reflect.DeepEqual(o.cfg, e.cfg) {
				return o, nil
			}
		}
	}
	var err error
	rc := c.remote(e.key)
	rc.Log = log
	if e.Detector, err = remote.New(rc, nil); err != nil {
		return nil, err
	}
	return e, nil
}

// Classify implements gateway.Classifier.
func (s *scanner) Classify(ctx context.Context, r *gateway.ClassifyRequest) policy.Content {
	return s.classifier.Scan(ctx, &classify.Request{Body: r.Body, Decode: r.Decode})
}

// stats returns the totals since the gateway started, of what is configured now. The scanner may be nil.
func (s *scanner) stats() classify.Stats {
	if s == nil {
		return classify.Stats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.earlierLocked()
	addStats(&total, s.classifier.Stats())
	return total
}

// addStats adds counters.
func addStats(t *classify.Stats, more classify.Stats) {
	t.Bytes += more.Bytes
	for _, m := range []struct {
		to   *map[string]uint64
		from map[string]uint64
	}{
		{&t.Scans, more.Scans}, {&t.Hits, more.Hits}, {&t.Unmapped, more.Unmapped}, {&t.Failures, more.Failures}, {&t.Timeouts, more.Timeouts},
	} {
		if *m.to == nil {
			*m.to = make(map[string]uint64)
		}
		for key, n := range m.from {
			(*m.to)[key] += n
		}
	}
}

// keepStats drops what is counted of labels and detectors that a configuration does not have.
func keepStats(t *classify.Stats, c *LabelsConfig) {
	labels := c.labels()
	maps.DeleteFunc(t.Hits, func(label string, _ uint64) bool { return !slices.Contains(labels, label) })
	for _, m := range []map[string]uint64{t.Unmapped, t.Failures, t.Timeouts} {
		maps.DeleteFunc(m, func(name string, _ uint64) bool {
			return !slices.ContainsFunc(c.External, func(e ExternalLabelConfig) bool { return e.Name == name })
		})
	}
}
