package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
)

// begun tells when a handler first touches its answer, which it does once nobody
// else can.
type begun struct {
	*httptest.ResponseRecorder
	once  sync.Once
	began chan struct{}
}

func (b *begun) Header() http.Header {
	b.once.Do(func() { close(b.began) })
	return b.ResponseRecorder.Header()
}

func TestProfilePages(t *testing.T) {
	mux := http.NewServeMux()
	pages := &profilePages{}
	mux.Handle("GET /debug/pprof/{name}", pages)
	server := httptest.NewServer(mux)
	defer server.Close()
	status := func(path string) int {
		t.Helper()
		resp, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	for path, want := range map[string]int{
		"/debug/pprof/heap":                  200,
		"/debug/pprof/allocs":                200,
		"/debug/pprof/goroutine":             200,
		"/debug/pprof/profile":               400,
		"/debug/pprof/trace":                 400,
		"/debug/pprof/mutex?seconds=0":       400,
		"/debug/pprof/mutex?seconds=121":     400,
		"/debug/pprof/profile?seconds=a":     400,
		"/debug/pprof/cmdline":               404,
		"/debug/pprof/block?seconds=1":       200,
		"/debug/pprof/mutex?seconds=1":       200,
		"/debug/pprof/profile?seconds=1":     200,
		"/debug/pprof/threadcreate?seconds=": 404,
	} {
		if got := status(path); got != want {
			t.Errorf("%s: status %d, want %d", path, got, want)
		}
	}
	if n := runtime.SetMutexProfileFraction(-1); n != 0 {
		t.Errorf("mutexes are still recorded: one of %d", n)
	}

	// One at a time, and one whose client leaves makes room.
	ctx, cancel := context.WithCancel(context.Background())
	began := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/debug/pprof/block?seconds=120", nil)
		defer func() {
			if why, _ := recover().(error); !errors.Is(why, http.ErrAbortHandler) {
				t.Error("a profile that was given up looks whole")
			}
		}()
		mux.ServeHTTP(&begun{ResponseRecorder: httptest.NewRecorder(), began: began}, req)
	})
	<-began
	if got := status("/debug/pprof/mutex?seconds=1"); got != 409 {
		t.Errorf("a second profile: status %d, want 409", got)
	}
	cancel()
	group.Wait()
	if got := status("/debug/pprof/mutex?seconds=1"); got != 200 {
		t.Errorf("after the first has ended: status %d, want 200", got)
	}
}
