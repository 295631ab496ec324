//go:build !race

package classify

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestAllocations holds the memory that a scan takes: what it returns, whatever
// the size of the body.
func TestAllocations(t *testing.T) {
	c := mustNew(t, each())
	small := message("nothing to see")
	escaped := message(strings.Repeat("line\nafter line \"quoted\" é\n", 8000))
	parts := `{"messages":[` + strings.Repeat(`{"content":[{"type":"text","text":"a\nb"},{"type":"text","text":"c"}]},`, 500) + `{}]}`
	for name, test := range map[string]struct {
		body string
		most float64
	}{
		"small":   {small, 4},
		"escaped": {escaped, 4},
		"parts":   {parts, 4},
		"found":   {message("a@example.com 4111111111111111"), 12},
	} {
		r := &Request{Body: []byte(test.body)}
		c.Scan(context.Background(), r) // makes the scratch
		if got := testing.AllocsPerRun(50, func() { c.Scan(context.Background(), r) }); got > test.most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, test.most)
		}
	}
}

// TestThroughput guards against a prefilter that has stopped to be one: it asks
// for a tenth of what it does, in CPU time.
func TestThroughput(t *testing.T) {
	c := mustNew(t, each())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for kind, least := range map[string]float64{"prose": 80, "code": 30, "chinese": 25, "image": 150, "numbers": 2} {
		r := &Request{Body: timedBodies(t)[kind]}
		best := time.Hour
		for range 5 {
			start := cpuTime(t)
			for range 8 {
				c.Scan(context.Background(), r)
			}
			best = min(best, cpuTime(t)-start)
		}
		if speed := 8 * float64(len(r.Body)) / 1e6 / best.Seconds(); speed < least {
			t.Errorf("%s: %.0f MB/s, want %.0f or more", kind, speed, least)
		}
	}
}

// TestScratchIsBounded checks that a body which blows up the buffers does not
// leave them in the pool.
func TestScratchIsBounded(t *testing.T) {
	cfg := each()
	cfg.MaxBytes = 8 << 20
	cfg.Custom = []Custom{{Name: "d", Label: "d", Keywords: []string{"x"}}}
	c := mustNew(t, cfg)
	s := newScan(c)
	for _, body := range []string{
		message(strings.Repeat("\ufdfa", 1<<19)), message(strings.Repeat("\n", 5<<20)), `{"content":["` + strings.Repeat("x", 5<<20) + `"]}`,
		`{"prompt":[` + strings.Repeat("1,", 2<<20) + `1]}`,
	} {
		s.begin(context.Background(), &Request{Body: []byte(body)})
		s.body()
		s.release()
		if n := cap(s.ids); n > keepScratch/4 {
			t.Errorf("%d token ids are kept", n)
		}
		for name, b := range map[string][]byte{"words": s.words, "lines": s.lines, "visible": s.fold.buf, "folded": s.fold.out, "unescaped": s.levels[0].unescaped, "run": s.levels[0].run.text} {
			if cap(b) > keepScratch {
				t.Errorf("%s keeps %d bytes", name, cap(b))
			}
		}
	}
}
