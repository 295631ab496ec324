package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// Each cause of a reload puts the new policies in force for the next request, whole, and says so.
func TestReloadCauses(t *testing.T) {
	for _, c := range []struct {
		name  string
		cause string
		watch bool
		do    func(r *reloading)
	}{
		{"files", causeFiles, true, func(*reloading) {}},
		{"signal", causeSignal, false, func(r *reloading) { r.hangups <- struct{}{} }},
		{"admin", causeAdmin, false, func(r *reloading) {
			if status, page := r.reload(); status != 200 || !page.OK || page.Generation != 2 {
				r.Errorf("got %d %+v", status, page)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			edit := unwatched
			if c.watch {
				edit = func(dir string) { editConfig(dir, "reload: { poll: 1h }\n") } // by events alone
			}
			r := startReloading(t, edit)
			_, before := r.ask("globex")
			r.policy("quota.yaml", quota(100, "first"))
			c.do(r)
			soon(t, "the new policies", stackPatience, func() bool { return r.status().Generation == 2 })
			status, after := r.ask("globex")
			page := r.status()
			if status != 200 || after == before || after != page.Revision || page.Last.Cause != c.cause {
				t.Errorf("a request got %d under %q (before: %q); the page has %+v", status, after, before, page)
			}
			r.wantMetrics(
				`sluice_config_info{digest="`+after+`"} 1`, `sluice_config_reloads_total{result="success"} 1`,
				`sluice_config_reloads_total{result="failure"} 0`, "sluice_config_generation 2", "sluice_config_last_reload_successful 1",
			)
			if text := metricsText(t, r.a); strings.Contains(text, `digest="`+before) {
				t.Error("the metrics still show the old revision")
			}
			if !strings.Contains(r.log.String(), "msg=reloaded cause="+c.cause+" generation=2 policy="+after) {
				t.Error("the log does not tell of it")
			}
		})
	}
}

// Files change in more ways than one; each is noticed, by events or by looking, and leads to one reload.
func TestReloadOfChangedFiles(t *testing.T) {
	for _, poll := range []bool{false, true} {
		for _, c := range []struct {
			name  string
			setUp func(t *testing.T, dir string) (change func(t *testing.T))
		}{
			{name: "replaced by another file", setUp: func(t *testing.T, dir string) func(*testing.T) {
				return func(t *testing.T) {
					write(t, dir, map[string]string{"elsewhere/quota.yaml": quota(7, "second")})
					rename(t, filepath.Join(dir, "elsewhere/quota.yaml"), filepath.Join(dir, "policies/quota.yaml"))
				}
			}},
			{name: "in a new folder", setUp: func(t *testing.T, dir string) func(*testing.T) {
				return func(t *testing.T) {
					write(t, dir, map[string]string{"policies/team/deep/quota.yaml": quota(7, "second")})
				}
			}},
			{name: "a mounted ConfigMap", setUp: func(t *testing.T, dir string) func(*testing.T) {
				turn := mountConfigMap(t, filepath.Join(dir, "policies/mounted"), map[string]string{"quota.yaml": quota(6, "first")})
				return func(*testing.T) { turn(map[string]string{"quota.yaml": quota(7, "second")}) }
			}},
			{name: "a folder of a mounted ConfigMap", setUp: func(t *testing.T, dir string) func(*testing.T) {
				turn := mountConfigMap(t, filepath.Join(dir, "policies"), map[string]string{"team/quota.yaml": quota(6, "first")})
				return func(*testing.T) { turn(map[string]string{"team/quota.yaml": quota(7, "second")}) }
			}},
			{name: "the folder is a link into a ConfigMap", setUp: func(t *testing.T, dir string) func(*testing.T) {
				rename(t, filepath.Join(dir, "policies"), filepath.Join(dir, "starter"))
				turn := mountConfigMap(t, filepath.Join(dir, "mount"), map[string]string{"policies/quota.yaml": quota(6, "first")})
				link(t, "mount/policies", filepath.Join(dir, "policies"))
				return func(*testing.T) { turn(map[string]string{"policies/quota.yaml": quota(7, "second")}) }
			}},
			{name: "the tenants", setUp: func(t *testing.T, dir string) func(*testing.T) {
				return func(t *testing.T) { edit(t, filepath.Join(dir, "tenants.yaml"), "tier: silver", "tier: bronze") }
			}},
			{name: "the configuration", setUp: func(t *testing.T, dir string) func(*testing.T) {
				return func(t *testing.T) {
					edit(t, filepath.Join(dir, "sluice.yaml"), "defaultMaxTokens: 256, labelP", "defaultMaxTokens: 255, labelP")
				}
			}},
		} {
			t.Run(fmt.Sprintf("%s, polled %v", c.name, poll), func(t *testing.T) {
				var change func(*testing.T)
				r := startReloading(t, func(dir string) { change = c.setUp(t, dir) }, func(dir string) {
					if poll {
						editConfig(dir, "reload: { poll: 100ms }\n")
					} else {
						editConfig(dir, "reload: { poll: 1h }\n")
					}
				})
				change(t)
				soon(t, "a reload", stackPatience, func() bool { return r.status().Last != nil })
				if page := r.status(); !page.Last.OK || page.Generation != 2 {
					t.Errorf("got %+v", page.Last)
				}
				if status, _ := r.ask("globex"); status != 200 {
					t.Errorf("a request got %d", status)
				}
			})
		}
	}
}

// edit replaces a part of a file's text.
func edit(t *testing.T, file, old, fresh string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s does not hold %q", file, old)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), old, fresh, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever is wrong of whichever file, nothing of the new files is in force: not even a good policy beside
// it. The metrics, the log, /readyz and the admin listener say so, and stop to when it is mended.
func TestBrokenReloadChangesNothing(t *testing.T) {
	for _, c := range []struct {
		name, file, old, broken string
		want                    string // in the errors
	}{
		{"a policy that does not compile", "policies/tool-use.yaml", "request.tool_names.size()", "request.tool_nmaes.size()", `tool-use.yaml:\d+:\d+: .*did you mean "request.tool_names"`},
		{"a tenant", "tenants.yaml", "tier: gold", "tear: gold", `tenants.yaml:\d+:\d+: .*tear`},
		{"a price", "prices.yaml", "input: 500000", "input: free", `prices.yaml:\d+:\d+: `},
		{"the configuration", "sluice.yaml", "ledger:", "ledgre:", `sluice.yaml:\d+:\d+: ledgre: unknown key; did you mean "ledger"`},
		{"what needs a restart", "sluice.yaml", "deadline: 5s", "deadline: 6s", `sluice.yaml:\d+:\d+: drain.deadline: differs .*restart`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startReloading(t, unwatched)
			_, before := r.ask("globex")
			file := filepath.Join(r.d.dir, c.file)
			edit(t, file, c.old, c.broken)
			r.policy("quota.yaml", quota(0, "nobody")) // would refuse every request of globex
			status, page := r.reload()
			if status != http.StatusConflict || page.OK || page.Generation != 1 || page.Revision != before {
				t.Errorf("got %d %+v", status, page)
			}
			if !regexp.MustCompile(c.want).MatchString(strings.Join(page.Errors, "\n")) {
				t.Errorf("got errors %q, want %s", page.Errors, c.want)
			}
			if status, revision := r.ask("globex"); status != 200 || revision != before {
				t.Errorf("a request got %d under %q, want what was in force before: %q", status, revision, before)
			}
			if got := r.readyz(); got != `200 {"status":"ready","details":["reload_failed"]}` {
				t.Errorf("/readyz says %s", got)
			}
			r.wantMetrics(
				`sluice_config_reloads_total{result="failure"} 1`, "sluice_config_generation 1", "sluice_config_last_reload_successful 0",
				`sluice_degraded{part="config",reason="reload_failed"} 1`, `sluice_config_info{digest="`+before+`"} 1`,
			)
			if log := r.log.String(); !strings.Contains(log, "cannot reload") || !regexp.MustCompile(`msg="reload error" error=.*`+filepath.Base(c.file)).MatchString(log) {
				t.Error("the log does not name the file")
			}
			if last := r.status().Last; last == nil || last.OK || len(last.Errors) == 0 {
				t.Errorf("/debug/policies has %+v", last)
			}

			edit(t, file, c.broken, c.old)
			mustRemove(t, filepath.Join(r.d.dir, "policies/quota.yaml"))
			if status, page := r.reload(); status != 200 || page.Generation != 2 || page.Revision != before {
				t.Errorf("mended: got %d %+v", status, page)
			}
			if got := r.readyz(); got != `200 {"status":"ready"}` {
				t.Errorf("mended: /readyz says %s", got)
			}
			r.wantMetrics("sluice_config_last_reload_successful 1", `sluice_degraded{part="config",reason="reload_failed"} 0`)
		})
	}
}

// Mended files are noticed, also where the broken configuration named files that are not in force.
func TestMendedFilesAreNoticed(t *testing.T) {
	r := startReloading(t, func(dir string) { editConfig(dir, "reload: { poll: 1h }\n") })
	write(t, r.d.dir, map[string]string{"other/quota.yaml": "kind: Nonsense\n"})
	edit(t, filepath.Join(r.d.dir, "sluice.yaml"), "dir: policies", "dir: other")
	soon(t, "the refusal", stackPatience, func() bool { return r.a.reloads.failing() })
	write(t, r.d.dir, map[string]string{"other/quota.yaml": quota(9, "mended")})
	soon(t, "the mended policies", stackPatience, func() bool { return r.status().Generation == 2 })
	if status, _ := r.ask("globex"); status != 200 {
		t.Errorf("a request got %d", status)
	}
}

// A file that is checked and not reloaded, when it is missing, is named, and noticed when it is there again. A
// list of workers is none of these: it is followed by itself, and a fault in it keeps nothing from being
// loaded.
func TestReloadWithOtherFilesBroken(t *testing.T) {
	r := startReloading(t, func(dir string) {
		editConfig(dir, "reload: { poll: 1h }\n")
		edit(t, filepath.Join(dir, "sluice.yaml"), "  - name: restricted\n", "  - name: restricted\n    apiKeyFile: keys/worker.key\n    workersFrom: { file: more.yaml }\n")
		write(t, dir, map[string]string{"keys/worker.key": "sesame\n", "more.yaml": "[]\n"})
	})
	write(t, r.d.dir, map[string]string{"more.yaml": "- { name: x, url: nowhere }\n"})
	r.policy("quota.yaml", quota(9, "one"))
	soon(t, "a reload beside a broken list", stackPatience, func() bool { return r.status().Generation == 2 })
	rename(t, filepath.Join(r.d.dir, "keys/worker.key"), filepath.Join(r.d.dir, "keys/moved.key"))
	r.policy("quota.yaml", quota(9, "two"))
	soon(t, "the refusal", stackPatience, func() bool { return r.a.reloads.failing() })
	if errs := strings.Join(r.status().Last.Errors, "\n"); !strings.Contains(errs, "apiKeyFile: cannot read the file") {
		t.Errorf("got %s", errs)
	}
	rename(t, filepath.Join(r.d.dir, "keys/moved.key"), filepath.Join(r.d.dir, "keys/worker.key"))
	soon(t, "the reload", stackPatience, func() bool { return r.status().Generation == 3 })
}

// Limits keep what they have counted, whatever else changes: neither a reload nor a higher number fills a
// bucket.
func TestReloadKeepsLimits(t *testing.T) {
	r := startReloading(t, unwatched, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "policies/quota.yaml"), []byte(quota(3, "first")), 0o600); err != nil {
			panic(err)
		}
	})
	want := func(what string, status int) {
		t.Helper()
		if got, _ := r.ask("globex"); got != status {
			t.Errorf("%s: status %d, want %d", what, got, status)
		}
	}
	want("the first", 200)
	want("the second", 200)
	r.policy("quota.yaml", quota(3, "second"))
	if status, page := r.reload(); status != 200 {
		t.Fatalf("%d %+v", status, page)
	}
	want("the third, after a reload", 200)
	want("the fourth", 429)
	r.policy("quota.yaml", quota(300, "second"))
	if status, page := r.reload(); status != 200 {
		t.Fatalf("%d %+v", status, page)
	}
	want("the fourth, of one in twelve seconds", 429)
	soon(t, "the bucket to refill at the new rate", stackPatience, func() bool { status, _ := r.ask("globex"); return status == 200 })
}

// A stream that runs is judged, routed, billed and booked as it began, and is not cut.
func TestRunningRequestsKeepTheirGeneration(t *testing.T) {
	r := startReloading(t, unwatched)
	before := r.status().Revision
	client := gatewaytest.Dial(t, r.a.public.Addr().String())
	client.Send("POST", "/v1/chat/completions",
		`{"model":"demo-chat","stream":true,"ignore_eos":true,"max_tokens":200,"messages":[{"role":"user","content":"a story"}]}`,
		"Authorization: Bearer "+r.d.keys["globex"])
	events := gatewaytest.NewEventReader(client.Head().Body)
	if _, err := events.Next(); err != nil {
		t.Fatal(err)
	}
	// Under what is loaded now, globex may ask for nothing, and costs something else.
	r.policy("quota.yaml", quota(0, "nobody"))
	edit(t, filepath.Join(r.d.dir, "prices.yaml"), "output: 1500000", "output: 9000000")
	if status, page := r.reload(); status != 200 {
		t.Fatalf("%d %+v", status, page)
	}
	if status, _ := r.ask("globex"); status == 200 {
		t.Error("a new request was admitted")
	}
	last := ""
	for {
		ev, err := events.Next()
		if err != nil {
			break
		}
		last = ev.Data
	}
	if !strings.Contains(last, "[DONE]") {
		t.Errorf("the stream ended with %q", last)
	}
	soon(t, "the row", stackPatience, func() bool { return len(rows(t, r.a)) == 2 })
	for _, row := range rows(t, r.a) {
		if row.OutputTokens == 0 {
			continue
		}
		if row.PolicyRevision != before || row.Prices.Output != 1500000 || row.OutputTokens != 200 {
			t.Errorf("the stream's row: revision %s (want %s), price %d, %d tokens", row.PolicyRevision, before, row.Prices.Output, row.OutputTokens)
		}
	}
}

// Series of rules that are gone go, and what is still counted of them has no name.
func TestSeriesOfRemovedRules(t *testing.T) {
	r := startReloading(t, unwatched, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "policies/quota.yaml"), []byte(quota(0, "first")), 0o600); err != nil {
			panic(err)
		}
	})
	r.ask("globex")
	denied := `sluice_policy_decisions_total{decision="deny",policy="quota",rule="hourly"} 1`
	r.wantMetrics(denied)
	old := r.a.reloads.generation()
	mustRemove(t, filepath.Join(r.d.dir, "policies/quota.yaml"))
	if status, page := r.reload(); status != 200 {
		t.Fatalf("%d %+v", status, page)
	}
	if text := metricsText(t, r.a); strings.Contains(text, `"quota`) {
		t.Error("the metrics still name the removed policy")
	}
	// A request of the old generation that ends now.
	r.a.gateway.Swap(old.state)
	r.ask("globex")
	r.wantMetrics(`sluice_policy_decisions_total{decision="deny",policy="other",rule="other"} 1`)
	if text := metricsText(t, r.a); strings.Contains(text, `"quota`) {
		t.Error("the removed policy came back to the metrics")
	}
}

// Callers that wait while a reload is under way share the next one, and nobody waits for a gateway that has
// ended.
func TestReloadCallsAreShared(t *testing.T) {
	r := startReloading(t, unwatched)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if a, err := r.a.reloads.Reload(t.Context(), causeAdmin); err != nil || a.err != nil {
				t.Errorf("%v %v", err, a.err)
			}
		})
	}
	wg.Wait()
	if good, _ := r.a.reloads.counts(); good == 0 || good >= 50 {
		t.Errorf("50 callers led to %d reloads", good)
	}
	ended := &reloader{asked: make(chan *reloadCall), ended: make(chan struct{})}
	close(ended.ended)
	if _, err := ended.Reload(context.Background(), causeAdmin); !errors.Is(err, errNotRunning) {
		t.Errorf("got %v", err)
	}
}

// Only holders of the token may reload, and no page of another origin may have an operator's browser do it.
func TestReloadIsGuarded(t *testing.T) {
	r := startReloading(t, func(dir string) {
		write(t, dir, map[string]string{"token": "open-sesame\n"})
		edit(t, filepath.Join(dir, "sluice.yaml"), `admin: { address: "127.0.0.1:0" }`, `admin: { address: "127.0.0.1:0", tokenFile: token }`)
	})
	for _, c := range []struct {
		method, credential, origin string
		status                     int
	}{
		{"POST", "", "", 401}, {"POST", "Bearer open-sesam", "", 401}, {"GET", "Bearer open-sesame", "", 405},
		{"POST", "Bearer open-sesame", "https://elsewhere.example", 403}, {"POST", "Bearer open-sesame", "", 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+r.a.admin.Addr().String()+"/admin/reload", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", c.credential)
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
			req.Header.Set("Sec-Fetch-Site", "cross-site")
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%+v: %d", c, resp.StatusCode)
		}
	}
	if good, failed := r.a.reloads.counts(); good != 1 || failed != 0 {
		t.Errorf("%d and %d reloads, want one", good, failed)
	}
}

// `serve` reloads at SIGHUP, from the file that it was started with, and drains at SIGTERM.
func TestServeReloadsAtHangup(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "sluice.yaml")
	edit(t, file, ", tokenizer: tokenizer", "")
	edit(t, file, "0.0.0.0:8080", "127.0.0.1:0")
	edit(t, file, "listen:\n", "listen:\n  admin: { address: \"127.0.0.1:0\" }\n")
	editConfig(dir, "reload: { watch: false }\ndrain: { delay: 0s, deadline: 1s }\nlog: { format: text }\n")
	var log syncBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- execute(t.Context(), time.Now, []string{"serve", "-c", file}, strings.NewReader(""), io.Discard, &log)
	}()
	soon(t, "the gateway to serve", stackPatience, func() bool { return strings.Contains(log.String(), "msg=serving") })
	edit(t, file, "drain: { delay: 0s, deadline: 1s }", "drain: { delay: 0s, deadline: 2s }")
	hangUp := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	hangUp()
	soon(t, "the refusal", stackPatience, func() bool { return strings.Contains(log.String(), "drain.deadline: differs") })
	edit(t, file, "drain: { delay: 0s, deadline: 2s }", "drain: { delay: 0s, deadline: 1s }")
	edit(t, file, "policy: { dir: policies }", "policy: { dir: policies, defaultMaxTokens: 77 }")
	hangUp()
	soon(t, "the reload", stackPatience, func() bool { return strings.Contains(log.String(), "msg=reloaded cause=SIGHUP generation=2") })
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d:\n%s", code, log.String())
	}
}
