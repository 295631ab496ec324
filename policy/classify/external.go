package classify

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// askExternal asks all external detectors side by side, waits for all of them
// and adds what they found.
func (c *Classifier) askExternal(ctx context.Context, text string, found *findings) {
	answers := make([]answer, len(c.external))
	var wg sync.WaitGroup
	for i, e := range c.external[1:] {
		wg.Go(func() { answers[i+1] = ask(ctx, e, text) })
	}
	answers[0] = ask(ctx, c.external[0], text)
	wg.Wait()
	for i, e := range c.external {
		c.take(e.Name(), &answers[i], found)
	}
}

// answer is what one external detector said.
type answer struct {
	hits map[string]int64
	err  error
}

// ask keeps a panic of a detector an error of its own: it may be on a goroutine
// where nothing else would catch it. The text of the panic is dropped, as it may
// hold some of the prompt.
func ask(ctx context.Context, e External, text string) (a answer) {
	defer func() {
		if recover() != nil {
			a = answer{err: fmt.Errorf("detector %s panicked", e.Name())}
		}
	}()
	a.hits, a.err = e.Detect(ctx, text)
	return a
}

// take adds one answer to the findings. A detector that returns a malformed
// label is a failed one: what it means can't be known.
func (c *Classifier) take(name string, a *answer, found *findings) {
	for label, n := range a.hits {
		switch {
		case n <= 0:
		case label == "":
			c.stats.unmapped(name, n)
		case !isName(label):
			a.err = errors.Join(a.err, fmt.Errorf("detector %s returned a malformed label", name))
		default:
			found.add(label, n)
		}
	}
	if a.err == nil {
		found.detectors = append(found.detectors, name)
		return
	}
	st := unavailable
	if errors.Is(a.err, context.DeadlineExceeded) {
		st = timeout
	}
	c.stats.failed(name, st)
	found.worsen(st)
}

// add counts hits under a label, without overflow.
func (f *findings) add(label string, n int64) {
	if f.hits == nil {
		f.hits = map[string]int64{}
	}
	f.hits[label] = addSaturated(f.hits[label], n)
}

// addSaturated adds two counts that aren't negative.
func addSaturated(a, b int64) int64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return 1<<63 - 1
}
