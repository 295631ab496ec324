package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// revocationBound is what a revocation may take here. What is promised is a second, which
// tests in virtual time hold (tenancy/authn); these run on machines that may do something
// else for as long. It is far below the time after which keys are read whole anyway.
const revocationBound = 20 * time.Second

// keys runs `sluice keys` and returns what it prints.
func (r *reloading) keys(args ...string) string {
	r.Helper()
	var out, errs bytes.Buffer
	if code := execute(r.Context(), time.Now, append([]string{"keys"}, args...), strings.NewReader(""), &out, &errs); code != exitOK {
		r.Fatalf("keys %s: exit code %d\n%s", strings.Join(args, " "), code, errs.String())
	}
	return strings.TrimSpace(out.String())
}

// statusOf asks a gateway for its models.
func statusOf(t *testing.T, a *app, key string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.baseURL()+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// until asks gateways until all of them answer with the status, and fails if that takes too long.
func until(t *testing.T, since time.Time, status int, key string, gateways ...*app) {
	t.Helper()
	for i, a := range gateways {
		for got := 0; got != status; {
			got = statusOf(t, a, key)
			if late := time.Since(since); got != status && late > revocationBound {
				t.Fatalf("gateway %d answers %d after %v, want %d", i, got, late, status)
			}
		}
	}
	t.Logf("after %v", time.Since(since).Round(time.Millisecond))
}

func keyIDIn(t *testing.T, key string) string {
	t.Helper()
	id, ok := authn.KeyIDOf(key)
	if !ok {
		t.Fatal("a key has no id")
	}
	return id
}

// A key is refused soon after `keys revoke`, whatever else keeps the gateway from loading anything, and
// the others work on.
func TestRevocationWhateverIsBroken(t *testing.T) {
	for name, spoil := range map[string]func(r *reloading){
		"nothing":     func(*reloading) {},
		"a policy":    func(r *reloading) { r.policy("bad.yaml", "kind: AdmissionPolicy\n  nonsense") },
		"the prices":  func(r *reloading) { edit(r.T, filepath.Join(r.d.dir, "prices.yaml"), "input: 500000", "input: free") },
		"the config":  func(r *reloading) { editConfig(r.d.dir, "ledgre: {}\n") },
		"a restart":   func(r *reloading) { edit(r.T, filepath.Join(r.d.dir, "sluice.yaml"), "level: warn", "level: info") },
		"the tenants": func(r *reloading) { edit(r.T, filepath.Join(r.d.dir, "tenants.yaml"), "tier: gold", "teir: gold") },
	} {
		t.Run(name, func(t *testing.T) {
			r := startReloading(t, func(dir string) { editConfig(dir, "reload: { poll: 1h }\n") })
			spoil(r)
			if status, page := r.reload(); (status == 200) != (name == "nothing") {
				t.Fatalf("the reload: %d %+v", status, page)
			}
			key := r.d.keys["acme"]
			if got := statusOf(t, r.a, key); got != 200 {
				t.Fatalf("before: %d", got)
			}
			file := filepath.Join(r.d.dir, "sluice.yaml")
			r.keys("revoke", "-c", file, keyIDIn(t, key), "--reason", "lost")
			until(t, time.Now(), 401, key, r.a)
			if got := statusOf(t, r.a, r.d.keys["globex"]); got != 200 {
				t.Errorf("another key: %d", got)
			}
			// It is not the reload that did it.
			if page := r.status(); name != "nothing" && page.Generation != 1 {
				t.Errorf("generation %d is in force", page.Generation)
			}
			if failing := strings.Contains(r.readyz(), "keys_failing"); failing != (name == "the tenants") {
				t.Errorf("keys_failing is %v: %s", failing, r.readyz())
			}
			r.wantMetrics(`sluice_keys{state="revoked"} 1`, `sluice_auth_failures_total{reason="revoked"} 1`)
		})
	}
}

// A new key, a rotation and a disabled tenant take effect beside a reload that is refused, too.
func TestKeysChangeBesideARefusedReload(t *testing.T) {
	r := startReloading(t, func(dir string) { editConfig(dir, "reload: { poll: 1h }\n") })
	r.policy("bad.yaml", "kind: AdmissionPolicy\n  nonsense")
	if status, _ := r.reload(); status != 409 {
		t.Fatalf("the reload: %d", status)
	}
	tenants := filepath.Join(r.d.dir, "tenants.yaml")
	key := r.keys("create", "--tenants", tenants, "--tenant", "acme", "--operation", "chat")
	until(t, time.Now(), 403, key, r.a) // it is known, but not for this operation
	key = r.keys("create", "--tenants", tenants, "--tenant", "acme", "--model", "other-*")
	until(t, time.Now(), 200, key, r.a)
	r.d.keys["other models"] = key
	if got, _ := r.ask("other models"); got != 404 {
		t.Errorf("a key for other models: %d", got)
	}
	key = r.d.keys["acme"]
	fresh := r.keys("rotate", "--tenants", tenants, keyIDIn(t, key), "--overlap", "0s")
	start := time.Now()
	until(t, start, 401, key, r.a)
	until(t, start, 200, fresh, r.a)
	edit(t, tenants, "id: globex\n", "id: globex\n    disabled: true\n")
	until(t, time.Now(), 403, r.d.keys["globex"], r.a)
	if got := statusOf(t, r.a, r.d.keys["initech"]); got != 200 {
		t.Errorf("another tenant: %d", got)
	}
}

// twoGateways serve with the same files, each with a ledger of its own.
func twoGateways(t *testing.T, more string) (*reloading, *app) {
	t.Helper()
	r := startReloading(t, func(dir string) { editConfig(dir, more) })
	second := *r.d.cfg
	second.Ledger.Path = filepath.Join(r.d.dir, "second.db")
	return r, serveApp(t, &second, newLogger(r.log, LogConfig{Level: "info", Format: "text"}))
}

// Keys in a database that two gateways share: a new one works on both at once, and one that is revoked or
// rotated away is refused by both, while neither can load its policies.
func TestRevocationOnEveryGateway(t *testing.T) {
	for name, more := range map[string]func(t *testing.T) string{
		"SQLite": func(*testing.T) string { return "keys: { path: keys.db }\n" },
		"PostgreSQL": func(t *testing.T) string {
			file := filepath.Join(t.TempDir(), "keys.dsn")
			if err := os.WriteFile(file, []byte(keysDatabase(t)), 0o600); err != nil {
				t.Fatal(err)
			}
			return "keys: { postgresFile: " + file + " }\n"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, second := twoGateways(t, more(t))
			r.policy("bad.yaml", "kind: AdmissionPolicy\n  nonsense")
			if status, _ := r.reload(); status != 409 {
				t.Fatalf("the reload: %d", status)
			}
			file := filepath.Join(r.d.dir, "sluice.yaml")
			key := r.keys("create", "-c", file, "--tenant", "globex", "--name", "shared")
			until(t, time.Now(), 200, key, r.a, second)
			fresh := r.keys("rotate", "-c", file, keyIDIn(t, key), "--overlap", "0s")
			start := time.Now()
			until(t, start, 401, key, r.a, second)
			until(t, start, 200, fresh, r.a, second)
			r.keys("revoke", "-c", file, keyIDIn(t, fresh), "--reason", "lost")
			until(t, time.Now(), 401, fresh, r.a, second)
			// Keys of the file work beside those of the database, and can be revoked as ever.
			key = r.d.keys["acme"]
			if got := statusOf(t, r.a, key); got != 200 {
				t.Errorf("a key of the file: %d", got)
			}
			r.keys("revoke", "-c", file, keyIDIn(t, key))
			until(t, time.Now(), 401, key, r.a, second)
			var list []listedKey
			if err := json.Unmarshal([]byte(r.keys("list", "-c", file, "--format", "json")), &list); err != nil {
				t.Fatal(err)
			}
			states := make(map[string]int)
			for _, k := range list {
				states[k.Where+" "+k.State]++
				if k.ID == keyIDIn(t, fresh) && (k.Reason != "lost" || k.RevokedBy == "" || k.RotatedFrom == "" || k.Revoked == nil) {
					t.Errorf("listed as %+v", k)
				}
			}
			if states["database expired"] != 1 || states["database revoked"] != 1 || states["file revoked"] != 1 || states["file active"] != 2 {
				t.Errorf("listed: %v", states)
			}
		})
	}
}

// keysDatabase makes a PostgreSQL database of the test's own and returns its connection string.
func keysDatabase(t *testing.T) string {
	t.Helper()
	dsn, err := postgresServer(t).Database()
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

// While the database is away the keys that are known work on and the list of revoked credentials still holds;
// when it is back, so is the promise.
func TestKeysWithoutTheirDatabase(t *testing.T) {
	server := postgresServer(t)
	dsn, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	dsnFile := filepath.Join(t.TempDir(), "keys.dsn")
	if err := os.WriteFile(dsnFile, []byte(dsn), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startReloading(t, func(dir string) { editConfig(dir, "keys: { postgresFile: "+dsnFile+" }\n") })
	file := filepath.Join(r.d.dir, "sluice.yaml")
	first := r.keys("create", "-c", file, "--tenant", "globex")
	second := r.keys("create", "-c", file, "--tenant", "globex")
	until(t, time.Now(), 200, second, r.a)
	server.Kill()
	soon(t, "the failure is told", stackPatience, func() bool { return strings.Contains(r.readyz(), "keys_failing") })
	r.wantMetrics(`sluice_keys_source_failing{source="database"} 1`, `sluice_degraded{part="keys",reason="failing"} 1`)
	if got := statusOf(t, r.a, first); got != 200 {
		t.Errorf("a known key: %d", got)
	}
	var out, errs bytes.Buffer
	code := execute(t.Context(), time.Now, []string{"keys", "revoke", "-c", file, keyIDIn(t, first)}, strings.NewReader(""), &out, &errs)
	if code != exitFailed || !strings.Contains(errs.String(), "revoke it again when the database answers") {
		t.Errorf("exit code %d\n%s", code, errs.String())
	}
	until(t, time.Now(), 401, first, r.a)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	soon(t, "the database is followed", stackPatience, func() bool { return !strings.Contains(r.readyz(), "keys_failing") })
	r.keys("revoke", "-c", file, keyIDIn(t, second))
	until(t, time.Now(), 401, second, r.a)
}

// A gateway that can't read its keys does not start, and says why without showing what it must not.
func TestServeNeedsItsKeys(t *testing.T) {
	r := startReloading(t)
	file := filepath.Join(r.d.dir, "keys.dsn")
	if err := os.WriteFile(file, []byte("postgres://u:hunter2@127.0.0.1:1/keys?connect_timeout=1"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := *r.d.cfg
	cfg.Keys.PostgresFile, cfg.Ledger.Path = file, filepath.Join(r.d.dir, "second.db")
	_, err := newApp(&cfg, newLogger(r.log, LogConfig{Level: "info", Format: "text"}))
	if err == nil || !strings.Contains(err.Error(), "cannot open the keys in PostgreSQL") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

// When keys were last used outlives the gateway that saw it, whether they are in the tenants file or in a
// database.
func TestLastUseIsKept(t *testing.T) {
	d, err := newDemo(demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r := &reloading{T: t, d: d, log: &syncBuffer{}}
	editConfig(d.dir, "keys: { path: keys.db }\n")
	file := filepath.Join(d.dir, "sluice.yaml")
	stored := r.keys("create", "-c", file, "--tenant", "globex")
	unused := r.keys("create", "-c", file, "--tenant", "globex")
	cfg, _, err := LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newApp(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- a.serve(ctx) }()
	start := time.Now().Truncate(time.Second)
	for _, key := range []string{stored, d.keys["acme"]} {
		if got := statusOf(t, a, key); got != 200 {
			t.Errorf("status %d", got)
		}
	}
	stop()
	if err := errors.Join(<-served, a.Close()); err != nil {
		t.Fatal(err)
	}
	var list []listedKey
	if err := json.Unmarshal([]byte(r.keys("list", "-c", file, "--format", "json")), &list); err != nil {
		t.Fatal(err)
	}
	used := make(map[string]*time.Time)
	for _, k := range list {
		used[k.ID] = k.LastUsed
	}
	for _, key := range []string{stored, d.keys["acme"]} {
		if at := used[keyIDIn(t, key)]; at == nil || at.Before(start) || at.After(time.Now()) {
			t.Errorf("used at %v, want after %v", at, start)
		}
	}
	for _, key := range []string{unused, d.keys["initech"]} {
		if at := used[keyIDIn(t, key)]; at != nil {
			t.Errorf("a key that nobody used was used at %v", at)
		}
	}
}

// With keys.cutRunning a stream of a revoked key ends soon, with an error event; the stream of another
// key goes on, and without the setting so does the revoked one's.
func TestRevocationOfRunningStreams(t *testing.T) {
	for name, more := range map[string]string{"cut": "keys: { cutRunning: true }\n", "not cut": ""} {
		t.Run(name, func(t *testing.T) {
			r := startReloading(t, unwatched, func(dir string) { editConfig(dir, more) })
			stream := func(tenant string) *bufio.Reader {
				t.Helper()
				body := `{"model":"demo-chat","stream":true,"max_tokens":800,"ignore_eos":true,"messages":[{"role":"user","content":"hello"}]}`
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.a.baseURL()+"/v1/chat/completions", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+r.d.keys[tenant])
				req.Header.Set("Content-Type", "application/json")
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { resp.Body.Close() })
				if resp.StatusCode != 200 {
					t.Fatalf("status %d", resp.StatusCode)
				}
				events := bufio.NewReader(resp.Body)
				if _, err := events.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				return events
			}
			mine, other := stream("acme"), stream("globex")
			stall(r.d, true) // else they end by themselves on a busy machine
			defer stall(r.d, false)
			r.keys("revoke", "--tenants", filepath.Join(r.d.dir, "tenants.yaml"), keyIDIn(t, r.d.keys["acme"]))
			start := time.Now()
			until(t, start, 401, r.d.keys["acme"], r.a)
			if name == "cut" {
				late := time.AfterFunc(revocationBound, func() { stall(r.d, false) })
				defer late.Stop()
			} else {
				stall(r.d, false)
			}
			rest, err := io.ReadAll(mine)
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			cut := strings.Contains(string(rest), `"code":"invalid_api_key"`) && !strings.Contains(string(rest), "[DONE]")
			if want := name == "cut"; cut != want {
				t.Errorf("cut %v after %v:\n%s", cut, took, rest)
			}
			stall(r.d, false)
			t.Logf("ended after %v", took.Round(time.Millisecond))
			if rest, err := io.ReadAll(other); err != nil || !strings.Contains(string(rest), "[DONE]") {
				t.Errorf("another key's stream: %v", err)
			}
		})
	}
}

// Keys that are copied to a database work on without a gap, and are then revoked there or in the file.
func TestImportedKeysWorkOn(t *testing.T) {
	r, second := twoGateways(t, "keys: { path: keys.db }\n")
	file, tenants := filepath.Join(r.d.dir, "sluice.yaml"), filepath.Join(r.d.dir, "tenants.yaml")
	if got := r.keys("import", "-c", file); !strings.HasPrefix(got, "Copied 3 keys of ") || !strings.HasSuffix(got, "; 0 were there before, 0 were left out that no longer work") {
		t.Errorf("said %q", got)
	}
	if got := r.keys("import", "-c", file); !strings.HasPrefix(got, "Copied 0 keys of ") || !strings.Contains(got, "; 3 were there before") {
		t.Errorf("said %q", got)
	}
	for start := time.Now(); time.Since(start) < time.Second; {
		for tenant, key := range r.d.keys {
			if got := statusOf(t, r.a, key); got != 200 {
				t.Fatalf("%s: %d", tenant, got)
			}
		}
	}
	r.keys("revoke", "-c", file, keyIDIn(t, r.d.keys["acme"]))
	until(t, time.Now(), 401, r.d.keys["acme"], r.a, second)
	r.keys("revoke", "--tenants", tenants, keyIDIn(t, r.d.keys["globex"]))
	until(t, time.Now(), 401, r.d.keys["globex"], r.a, second)
	if err := os.Remove(tenants + ".revoked"); err != nil { // the file alone says it now
		t.Fatal(err)
	}
	soon(t, "the list is gone", stackPatience, func() bool { return strings.Contains(r.log.about("list of revoked"), "before=1 now=0") })
	if got := statusOf(t, r.a, r.d.keys["globex"]); got != 401 {
		t.Errorf("a key that the file disables: %d", got)
	}
	// Without the file's copy the database's works.
	text, err := os.ReadFile(tenants)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^    keys:\n(      .*\n|        .*\n)*`).ReplaceAll(text, nil)
	if err := os.WriteFile(tenants, text, 0o600); err != nil {
		t.Fatal(err)
	}
	soon(t, "the keys are out of the file", stackPatience, func() bool { return r.status().Generation > 1 })
	if got := statusOf(t, r.a, r.d.keys["initech"]); got != 200 {
		t.Errorf("a key of the database alone: %d", got)
	}
}
