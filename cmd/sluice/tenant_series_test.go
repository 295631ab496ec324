package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRemovedTenantHasNoSeries: a tenant that is removed while it has a request in
// flight leaves the metrics at the reload; neither a scrape while it runs nor its end
// brings it back, and its row is counted all the same.
func TestRemovedTenantHasNoSeries(t *testing.T) {
	r := startReloading(t, unwatched)
	if status, _ := r.ask("globex"); status != 200 {
		t.Fatalf("globex got %d", status)
	}
	ctx, leave := context.WithCancel(r.Context())
	defer leave()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		body := user("hello")
		body["stream"], body["max_tokens"] = true, 3000
		_, _ = r.tour.ask(ctx, "globex", body) // it is left
	}()
	inFlight := "\nsluice_http_requests_in_flight{route=\"/v1/chat/completions\"} 1\n"
	soon(t, "the request to be in flight", stackPatience, func() bool {
		text := metricsText(t, r.a)
		return strings.Contains(text, inFlight) && !strings.Contains(text, `sluice_tenant_reserved_tokens{model="demo-chat",tenant="globex"} 0`)
	})
	stall(r.d, true) // else it ends by itself on a busy machine
	defer stall(r.d, false)
	file := filepath.Join(r.d.dir, "tenants.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	from, to := bytes.Index(text, []byte("  - id: globex")), bytes.Index(text, []byte("  - id: initech"))
	if err := os.WriteFile(file, append(text[:from:from], text[to:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, page := r.reload(); status != 200 {
		t.Fatalf("reload: %d %+v", status, page)
	}
	gone := func(when string) string {
		t.Helper()
		text := metricsText(t, r.a)
		if i := strings.Index(text, `"globex"`); i >= 0 {
			t.Errorf("%s the metrics have globex: %s", when, text[max(0, i-80):i+40])
		}
		return text
	}
	if text := gone("while its request runs"); !strings.Contains(text, inFlight) {
		t.Error("the request has ended too early to show anything")
	}
	leave()
	<-asked
	soon(t, "its row", stackPatience, func() bool { return len(rows(t, r.a)) == 2 })
	text2 := gone("after its end")
	for _, want := range []string{
		`sluice_tenant_requests_total{model="demo-chat",status_class="4xx",tenant="other"} 1`,
		`sluice_tenant_reserved_tokens{model="other",tenant="other"} 0`, "sluice_tenant_retired_requests_total 1",
	} {
		if !strings.Contains(text2, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
