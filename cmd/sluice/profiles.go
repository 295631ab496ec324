package main

import (
	"fmt"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"sync"
	"time"
)

// maxProfile is the longest time that a profile may be taken for, in seconds.
const maxProfile = 120

// profilePages serves what the runtime knows of where time and memory go, for
// `go tool pprof` and, the trace, `go tool trace`. Times spent waiting are recorded while somebody asks for them
// and at no other time, since that costs every request something.
type profilePages struct {
	recording sync.Mutex // held while a profile over time is taken
}

// ServeHTTP implements http.Handler for /debug/pprof/{name}.
func (p *profilePages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	seconds := 0
	if s := r.URL.Query().Get("seconds"); s != "" {
		var err error
		if seconds, err = strconv.Atoi(s); err != nil || seconds < 1 || seconds > maxProfile {
			http.Error(w, fmt.Sprintf("seconds should be a number from 1 to %d", maxProfile), http.StatusBadRequest)
			return
		}
	}
	var write func() error
	switch name {
	case "profile":
		write = func() error {
			if err := pprof.StartCPUProfile(w); err != nil {
				return err
			}
			defer pprof.StopCPUProfile()
			return sleep(r, seconds)
		}
	case "trace":
		write = func() error {
			if err := trace.Start(w); err != nil {
				return err
			}
			defer trace.Stop()
			return sleep(r, seconds)
		}
	case "block":
		write = func() error {
			runtime.SetBlockProfileRate(int(10 * time.Microsecond))
			defer runtime.SetBlockProfileRate(0)
			return p.wait(w, r, name, seconds)
		}
	case "mutex":
		write = func() error {
			defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(10))
			return p.wait(w, r, name, seconds)
		}
	case "heap", "allocs", "goroutine":
		w.Header().Set("Content-Type", "application/octet-stream")
		if err := pprof.Lookup(name).WriteTo(w, 0); err != nil {
			return // who asked has gone
		}
		return
	default:
		http.Error(w, "the profiles are profile, trace, block, mutex, heap, allocs and goroutine", http.StatusNotFound)
		return
	}
	if seconds == 0 {
		http.Error(w, name+" is taken over a time: add ?seconds=10", http.StatusBadRequest)
		return
	}
	if !p.recording.TryLock() {
		http.Error(w, "another profile is being taken", http.StatusConflict)
		return
	}
	defer p.recording.Unlock()
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := write(); err != nil {
		panic(http.ErrAbortHandler) // half a profile must not look like a whole one
	}
}

// wait lets a profile gather, and writes it.
func (p *profilePages) wait(w http.ResponseWriter, r *http.Request, name string, seconds int) error {
	if err := sleep(r, seconds); err != nil {
		return err
	}
	return pprof.Lookup(name).WriteTo(w, 0)
}

// sleep returns after a time, or earlier if the client leaves.
func sleep(r *http.Request, seconds int) error {
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-r.Context().Done():
		return r.Context().Err()
	}
}
