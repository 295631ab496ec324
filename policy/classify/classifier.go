package classify

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// Request is a body to scan.
type Request struct {
	// Body is JSON text as the client sent it. An empty one is no body.
	Body []byte
	// Decode turns the token ids of a prompt into text; it reports false if it
	// can't. Nil where the model has no tokenizer.
	Decode func(ids []uint32) (string, bool)
}

// Status words of content.scan_status.
const (
	StatusComplete    = "complete"
	StatusPartial     = "partial"
	StatusTimeout     = "timeout"
	StatusUnavailable = "unavailable"
)

// status orders them: the worst that holds is the greatest.
type status uint8

const (
	complete status = iota
	partial
	timeout
	unavailable
)

var statusWords = [...]string{StatusComplete, StatusPartial, StatusTimeout, StatusUnavailable}

// Classifier scans bodies. It is safe for concurrent use and does not change
// after New, apart from its counters.
type Classifier struct {
	program
	now   func() time.Time
	pool  sync.Pool // *scan
	stats counters
}

// New compiles a configuration. Without any detector the Classifier is valid
// and reports every body as unavailable. The error names every fault.
func New(cfg Config) (*Classifier, error) {
	p, err := compile(&cfg)
	if err != nil {
		return nil, err
	}
	c := &Classifier{program: *p, now: time.Now}
	c.pool.New = func() any { return newScan(c) }
	return c, nil
}

// Scan looks for labels in a body and never fails: what went wrong is in the
// status. Labels are sorted and without repeats; Detectors are those that ran to
// an end or until the time was up. Neither the result nor the Classifier refers
// to r afterwards.
func (c *Classifier) Scan(ctx context.Context, r *Request) policy.Content {
	if len(r.Body) == 0 {
		c.stats.scanned(complete, 0)
		return policy.Content{ScanStatus: StatusComplete}
	}
	if len(c.detectors) == 0 && len(c.external) == 0 {
		c.stats.scanned(unavailable, 0)
		return policy.Content{ScanStatus: StatusUnavailable}
	}
	s := c.pool.Get().(*scan)
	defer s.release()
	s.begin(ctx, r)
	s.body()
	found := findings{hits: s.labelHits(), detectors: slices.Clone(c.detectors), status: s.status()}
	if len(c.external) > 0 {
		c.askExternal(ctx, s.collected(), &found)
	}
	c.stats.scanned(found.status, s.scannedBytes)
	c.stats.found(found.hits)
	return found.content()
}

// findings is what one scan has found so far.
type findings struct {
	hits      map[string]int64 // label -> hits, all above 0
	detectors []string
	status    status
}

func (f *findings) worsen(s status) { f.status = max(f.status, s) }

func (f *findings) content() policy.Content {
	slices.Sort(f.detectors)
	return policy.Content{
		Labels:     slices.Sorted(maps.Keys(f.hits)),
		Findings:   f.hits,
		Detectors:  f.detectors,
		ScanStatus: statusWords[f.status],
	}
}

// Revision identifies the detectors: two classifiers with the same revision find
// the same in the same body, as far as the external ones do.
func (c *Classifier) Revision() string { return c.revision }

// Detectors returns the names of all detectors, sorted.
func (c *Classifier) Detectors() []string {
	out := slices.Clone(c.detectors)
	for _, e := range c.external {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out
}
