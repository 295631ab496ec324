package discovery

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDescribedPaths(t *testing.T) {
	paths := []string{"/a", "/b", "/c"}
	for _, c := range []struct {
		body string
		want uint32
	}{
		{`{"openapi":"3.1.0","paths":{"/a":{"post":{}},"/c":{"get":{},"post":null},"/x":{"post":{}}}}`, 1 | 4 | pathsKnown},
		{`{"paths":{"/b":{"get":{}}}}`, 0},
		{`{"paths":{}}`, 0},
		{`{}`, 0},
		{`{"paths":[]}`, 0},
		{``, 0},
	} {
		if got := describedPaths([]byte(c.body), paths); got != c.want {
			t.Errorf("%s: got %b, want %b", c.body, got, c.want)
		}
	}
}

// A pool offers what all of its ready workers describe, and nobody knows what it offers
// while one of them has not described itself.
func TestOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil, func(c *Config) { c.Paths = []string{"/v1/chat/completions", "/v1/embeddings", "/v1/responses"} })
		w1, w2 := at("w1", "10.0.0.1"), at("w2", "10.0.0.2")
		describe := func(w Worker, paths ...string) {
			p.engine(w.URL).set(func(e *engine) {
				delete(e.bodies, "/openapi.json")
				if len(paths) > 0 {
					e.bodies["/openapi.json"] = `{"paths":{"` + strings.Join(paths, `":{"post":{}},"`) + `":{"post":{}}}}`
				}
			})
		}
		wait := false // whether what is not known may still become known
		want := func(pool string, known bool, set ...bool) {
			t.Helper()
			got, ok, awaited := p.c.Offered(pool)
			if awaited != (wait && !known) {
				t.Errorf("pool %s is awaited %t, want %t", pool, awaited, wait)
			}
			if ok != known {
				t.Errorf("pool %s is known %t, want %t", pool, ok, known)
			}
			for i, in := range set {
				if got.Has(i) != in {
					t.Errorf("pool %s has path %d: %t, want %t", pool, i, got.Has(i), in)
				}
			}
		}
		describe(w1, "/v1/chat/completions", "/v1/responses")
		describe(w2, "/v1/chat/completions", "/v1/embeddings", "/v1/responses")
		wait = true
		want("p", false)
		p.feed.list(w1, w2)
		p.states("w1=ready", "w2=ready")
		want("p", true, true, false, true)
		want("none", false)
		wait = false

		// The same version is not asked again; another one is, at the next look.
		describe(w1, "/v1/chat/completions")
		pass(66 * time.Second)
		want("p", true, true, false, true)
		if n := p.engine(w1.URL).count("/openapi.json"); n != 1 {
			t.Errorf("described %d times, want once", n)
		}
		p.engine(w1.URL).set(func(e *engine) { e.bodies["/version"] = `{"version":"0.33.0"}` })
		pass(66 * time.Second)
		want("p", true, true, false, false)
		for _, s := range p.c.Snapshot() {
			if s.Name == "w1" && strings.Join(s.Endpoints, " ") != "/v1/chat/completions" {
				t.Errorf("w1 shows the endpoints %q", s.Endpoints)
			}
		}

		// A description that doesn't come in time is asked for again soon, a few times.
		p.engine(w1.URL).set(func(e *engine) { e.bodies["/version"], e.hang["/openapi.json"] = `{"version":"0.33.1"}`, true })
		before := p.engine(w1.URL).count("/openapi.json")
		pass(66 * time.Second)
		if n := p.engine(w1.URL).count("/openapi.json") - before; n < maxPathTries || n > 3*maxPathTries {
			t.Errorf("asked %d times, want a few", n)
		}
		want("p", true, true, false, false) // what was known
		p.engine(w1.URL).set(func(e *engine) { delete(e.hang, "/openapi.json") })
		pass(66 * time.Second)
		want("p", true, true, false, false)

		// One that stops describing itself makes the pool unknown, one that is not ready
		// doesn't count.
		describe(w1)
		p.engine(w1.URL).set(func(e *engine) { e.bodies["/version"] = `{"version":"0.34.0"}` })
		pass(66 * time.Second)
		want("p", false)
		p.engine(w1.URL).set(func(e *engine) { e.status["/health"] = http.StatusServiceUnavailable })
		pass(20 * time.Second)
		want("p", true, true, true, true)

		// One that comes back is asked anew, and what it hangs over is given up.
		p.engine(w2.URL).set(func(e *engine) { e.status["/health"] = http.StatusServiceUnavailable })
		pass(20 * time.Second)
		wait = true
		want("p", false)
		p.engine(w2.URL).set(func(e *engine) { delete(e.status, "/health"); e.hang["/openapi.json"] = true })
		pass(66 * time.Second)
		wait = false
		want("p", false)
	})
}
