//go:build cgo && !notokenizers

package tokenize

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func TestPanicsStayInside(t *testing.T) {
	for range 3 {
		err := nativePanic()
		if err == nil || !strings.Contains(err.Error(), "BUG: the native library panicked in border.rs:") {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(err.Error(), "stays inside") {
			t.Errorf("the error quotes the panic: %v", err)
		}
	}
}

// TestEmptyViewsAreNil: the collector stops the process when it meets a pointer
// that is none, such as the address an empty list has in Rust.
func TestEmptyViewsAreNil(t *testing.T) {
	tok := demo(t, Options{})
	p, err := tok.plan(Completion, []byte(`{"prompt":[""]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer p.free()
	if unsafe.StringData(p.text) != nil || unsafe.SliceData(p.pieces) != nil || unsafe.SliceData(p.ids) != nil {
		t.Error("an empty part of a plan has an address")
	}
	q, err := tok.plan(Completion, []byte(`{"prompt":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer q.free()
	if unsafe.StringData(q.text) != nil || unsafe.SliceData(q.pieces) != nil || len(q.prompts) != 1 {
		t.Error("an empty part of a plan has an address")
	}
	if tok.native.before != nil || tok.native.after != nil {
		t.Error("the demo model adds nothing")
	}
}

// TestCollectorRunsAmidCalls keeps the collector and the stacks moving while
// native memory is in view.
func TestCollectorRunsAmidCalls(t *testing.T) {
	tok := demo(t, Options{CacheBytes: -1})
	body := completionBody(t, newTexts(13).next(200), true)
	var want Prompts
	if err := tok.Append(t.Context(), &want, Completion, body); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var calls, collector sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	})
	for range 4 {
		calls.Go(func() {
			for range 100 {
				var p Prompts
				if err := tok.Append(t.Context(), &p, Completion, body); err != nil || !slices.Equal(p.IDs, want.IDs) {
					t.Errorf("got %v, %v", p.IDs, err)
					return
				}
			}
		})
	}
	calls.Wait()
	close(done)
	collector.Wait()
}

func TestConcurrentUse(t *testing.T) {
	tok := demo(t, Options{CacheBytes: 256 << 10, Gate: NewGate(2)})
	want := map[string][]uint32{}
	gen := newTexts(5)
	var bodies []string
	for i := range 40 {
		text := gen.next(30)
		if i%4 == 0 {
			text = strings.Repeat(text+"x", 3000/(len(text)+1)+2)
		}
		body := string(completionBody(t, text, true))
		var p Prompts
		if err := tok.Append(t.Context(), &p, Completion, []byte(body)); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
		want[body] = p.IDs
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			var p Prompts
			for range 300 {
				body := bodies[rng.IntN(len(bodies))]
				p.Reset()
				if err := tok.Append(t.Context(), &p, Completion, []byte(body)); err != nil {
					t.Error(err)
					return
				}
				if !slices.Equal(p.IDs, want[body]) {
					t.Error("ids differ between calls")
					return
				}
				if rng.IntN(10) == 0 {
					_ = tok.Decode(p.IDs, true)
					_ = tok.Stats()
				}
			}
		})
	}
	wg.Wait()
}

// TestCloseWaitsForCalls: a call that runs when Close is called either finishes
// or is told; nothing touches freed memory.
func TestCloseWaitsForCalls(t *testing.T) {
	for range 20 {
		tok := demo(t, Options{})
		body := completionBody(t, strings.Repeat("some words to encode ", 2000), true)
		started := make(chan struct{}, 4)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					var p Prompts
					err := tok.Append(t.Context(), &p, Completion, body)
					select {
					case started <- struct{}{}:
					default:
					}
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		<-started
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := tok.Close(); err == nil {
			t.Error("closing twice is not noticed")
		}
		if text := tok.Decode([]uint32{1}, false); text != "" {
			t.Errorf("decoded %q after Close", text)
		}
	}
}

// TestCloseFreesMemory loads and closes a large tokenizer a few times.
func TestCloseFreesMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("resident memory is read from /proc; only the calls are exercised here")
	}
	round := func() {
		tok, err := Load(filepath.Join(cacheDir, "llama3_1"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		var p Prompts
		if err := tok.Append(t.Context(), &p, Completion, completionBody(t, newTexts(9).next(5000), true)); err != nil {
			t.Error(err)
		}
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
	}
	round()
	before := residentMemory(t)
	for range 4 {
		round()
	}
	// A round that kept its model would grow the process by some 80 MiB.
	if grown := residentMemory(t) - before; grown > 120<<20 {
		t.Errorf("four rounds of load and close grew the process by %d MiB", grown>>20)
	}
}

func residentMemory(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
