package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/ratelimit/redis/redistest"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
	"github.com/sluicegate/sluice/tenancy/ledger/ledgertest"
	"github.com/sluicegate/sluice/tenancy/secretstest"
)

// marked is a credential that has no piece in common with any other text.
func marked(name string) string {
	sum := sha256.Sum256([]byte(name))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// keeping is a gateway whose every credential is known to the test, and all that
// it has told to anybody.
type keeping struct {
	*testing.T
	d       *demo
	file    string
	server  *ledgertest.Server
	store   *redistest.Server // of limits
	stored  string            // its folder
	cert    *gatewaytest.Certificate
	secrets *secretstest.Secrets // that nobody may be told
	prompts *secretstest.Secrets // that the client whose they are may be told
	answers bytes.Buffer         // what clients got
	pages   bytes.Buffer         // what operators got
	issuer  *oidctest.Provider   // of tokens
	signer  *oidctest.Signer     // its own
	edge    *oidctest.Signer     // of a proxy
	child   *child
	out     []string // what processes said
	inputs  []string // files that hold secrets, for the gateway to read
}

// TestNoSecretIsTold runs a whole gateway through whatever can go wrong, from
// clients with credentials of every bad kind to its own death, and then looks for
// each credential in all that it has said, written and answered.
func TestNoSecretIsTold(t *testing.T) {
	k := startKeeping(t)
	k.serve()
	k.ask()
	k.keyLife()
	k.tokens()
	k.badCredentials()
	k.badRequests()
	k.badWorkers()
	k.badBooks()
	k.badReloads()
	k.operatorPages()
	k.drain()
	k.crash()
	k.badStarts()
	k.commands()
	k.search()
}

func startKeeping(t *testing.T) *keeping {
	t.Helper()
	k := &keeping{T: t, secrets: new(secretstest.Secrets), prompts: new(secretstest.Secrets), cert: gatewaytest.NewCertificate(t)}
	var err error
	opts := demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1, worker: func(w *simworker.Config) { w.APIKey = marked("worker-key") }}
	if k.d, err = newDemo(opts, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.d.Close(); err != nil {
			t.Errorf("close the demo: %v", err)
		}
	})
	var dsnFile string
	k.server, dsnFile = postgresLedger(t)
	replaceIn(t, dsnFile, "\n", "&password="+marked("postgres-password")+"\n")
	k.file = filepath.Join(k.d.dir, "sluice.yaml")
	for name, text := range map[string]string{
		"admin.token": marked("admin-token"), "worker.key": marked("worker-key"), "cache.key": marked("cache-key"), "hash.key": marked("hash-key"),
	} {
		write(t, k.d.dir, map[string]string{name: text})
		k.inputs = append(k.inputs, name)
		k.secrets.Add("the content of "+name, text)
	}
	k.secrets.Add("the database's password", marked("postgres-password"))
	for tenant, key := range k.d.keys {
		k.secrets.Add("the key of "+tenant, strings.SplitN(key, "_", 3)[2])
	}
	k.tlsSecret()
	k.prompts.Add("a prompt", marked("prompt"))
	k.prompts.Add("a tool's arguments", marked("arguments"))
	k.prompts.Add("a salt", marked("salt"))
	replaceIn(t, k.file,
		`public: { address: "127.0.0.1:0" }`, fmt.Sprintf(`public: { address: "127.0.0.1:0", tls: { certFile: %s, keyFile: %s } }`, k.cert.CertFile, k.cert.KeyFile),
		`admin: { address: "127.0.0.1:0" }`, `admin: { address: "127.0.0.1:0", tokenFile: admin.token }`,
		"path: ledger.db", "path: ledger.db, postgresFile: "+dsnFile,
		"level: warn", "level: debug",
		"- name: general\n", "- name: general\n    apiKeyFile: worker.key\n",
		"- name: restricted\n", "- name: restricted\n    apiKeyFile: worker.key\n",
	)
	keys, err := k.server.Database()
	if err != nil {
		t.Fatal(err)
	}
	write(t, k.d.dir, map[string]string{"keys.dsn": keys + "&password=" + marked("keys-password")})
	k.inputs = append(k.inputs, "keys.dsn")
	k.secrets.Add("the keys' database's password", marked("keys-password"))
	k.startStore()
	k.signer, k.edge = oidctest.NewSigner(t, "ES256", "ours"), oidctest.NewSigner(t, "EdDSA", "edge")
	k.issuer = oidctest.NewProvider(t, k.signer)
	write(t, k.d.dir, map[string]string{"edge.jwks": string(oidctest.Set(k.edge))})
	editConfig(k.d.dir, jwtConfig(k.issuer)+`  proxies: [{ issuer: edge, networks: [127.0.0.1], jwksFile: edge.jwks, map: { tenant: claims.org } }]
`)
	editConfig(k.d.dir, "keys: { postgresFile: keys.dsn }\ndecisionLog: { path: decisions.jsonl, hashKeyFile: hash.key, sample: 1 }\n"+
		"reload: { watch: false }\nhealth: { interval: 100ms, ejectBase: 100ms, ejectMax: 200ms }\nlimits: { bodyBytes: 64KiB, headerBytes: 16KiB, streamIdle: 1s, firstByteStream: 1s, firstByteUnary: 1s }\n")
	return k
}

// startStore starts a Redis that leaves what it has in a file when it ends.
func (k *keeping) startStore() {
	k.Helper()
	k.stored = k.TempDir()
	var err error
	k.store, err = redistest.New("--requirepass", marked("redis-password"), "--dir", k.stored, "--save", "3600 1", "--rdbcompression", "no")
	if errors.Is(err, redistest.ErrNotInstalled) && !redistest.Required() {
		k.Skip(err)
	}
	if err != nil {
		k.Fatal(err)
	}
	k.Cleanup(k.store.Stop)
	write(k.T, k.d.dir, map[string]string{"redis.password": marked("redis-password")})
	k.inputs = append(k.inputs, "redis.password")
	k.secrets.Add("the store's password", marked("redis-password"))
	editConfig(k.d.dir, "store: { redis: { addresses: ["+k.store.Socket()+"], passwordFile: redis.password, timeout: 1s } }\n")
}

// tlsSecret marks the private number of the listener's key.
func (k *keeping) tlsSecret() {
	text, err := os.ReadFile(k.cert.KeyFile)
	if err != nil {
		k.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		k.Fatal(err)
	}
	number, err := key.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		k.Fatal(err)
	}
	k.secrets.Add("the TLS key", string(number))
	k.secrets.Add("the TLS key's file", string(block.Bytes[:len(block.Bytes)-70])) // the rest is the public key
}

// serve starts the gateway, and takes note of what the one before it has said.
func (k *keeping) serve(env ...string) {
	k.Helper()
	k.child = startChild(k.T, k.file, env...)
	k.child.scheme = "https"
	k.child.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: k.cert.Client.RootCAs, ServerName: k.cert.Client.ServerName}, //nolint:gosec // the test's own server
	}}
	k.Cleanup(k.child.client.CloseIdleConnections)
	k.child.waitReady(k.T)
}

// chat is a request for an answer, with marked text wherever a client may put some.
func chat(stream bool, more string) string {
	return fmt.Sprintf(`{"model":%q,"stream":%v,"max_tokens":5,"cache_salt":%q,"user":"somebody","messages":[{"role":"user","content":%q},`+
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":%q}}]}]%s}`,
		demoModel, stream, marked("salt"), marked("prompt"), marked("arguments"), more)
}

// send sends a request to the public listener and takes note of the answer. want
// is the status, 0 for a connection that ends or whatever else.
func (k *keeping) send(want int, method, target, body string, header ...string) {
	k.Helper()
	public, _, _ := k.child.addresses()
	req, err := http.NewRequestWithContext(k.Context(), method, "https://"+public+target, strings.NewReader(body))
	if err != nil {
		k.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := k.child.client.Do(req)
	if err != nil {
		fmt.Fprintln(&k.answers, err)
		if want != 0 {
			k.Errorf("%s %s: %v", method, target, err)
		}
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	fmt.Fprintf(&k.answers, "%d %v\n%s\n%v\n", resp.StatusCode, resp.Header, text, err)
	if want != 0 && resp.StatusCode != want {
		k.Errorf("%s %s: got %d, want %d: %s", method, target, resp.StatusCode, want, text)
	}
}

func (k *keeping) auth(tenant string) string { return "Bearer " + k.d.keys[tenant] }

const chatPath = "/v1/chat/completions"

// ask asks as a client should.
func (k *keeping) ask() {
	k.Helper()
	for _, stream := range []bool{false, true} {
		k.send(200, "POST", chatPath, chat(stream, ""), "Authorization", k.auth("acme"))
		k.send(200, "POST", chatPath, chat(stream, ""), "X-Api-Key", k.d.keys["globex"])
	}
	k.send(200, "GET", "/v1/models", "", "Authorization", k.auth("acme"))
}

// admin asks the admin listener.
func (k *keeping) admin(want int, method, path, token string) {
	k.Helper()
	_, admin, _ := k.child.addresses()
	req, err := http.NewRequestWithContext(k.Context(), method, "http://"+admin+path, nil)
	if err != nil {
		k.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		k.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		k.Errorf("%s %s: got %d %v, want %d: %s", method, path, resp.StatusCode, err, want, text)
	}
	fmt.Fprintf(&k.pages, "%d %v\n%s\n", resp.StatusCode, resp.Header, text)
}

// badReloads changes files as operators do by mistake.
func (k *keeping) badReloads() {
	k.Helper()
	key := k.d.keys["acme"]
	for _, change := range []struct {
		file string
		edit func(text string) string
	}{
		{"sluice.yaml", func(s string) string { return s + "apiKey: " + marked("worker-key") + "\n" }},
		{"sluice.yaml", func(s string) string {
			return strings.Replace(s, "apiKeyFile: worker.key", "apiKey: "+marked("worker-key"), 1)
		}},
		// Where a file's name belongs, people put what should be in it.
		{"sluice.yaml", func(s string) string { return strings.Replace(s, "admin.token", marked("admin-token"), 1) }},
		{"sluice.yaml", func(s string) string { return strings.Replace(s, "worker.key", marked("worker-key"), 1) }},
		{"sluice.yaml", func(s string) string { return strings.Replace(s, "cache.key", marked("cache-key"), 1) }},
		{"sluice.yaml", func(s string) string {
			return strings.Replace(s, "redis.password", marked("redis-password"), 1)
		}},
		{"sluice.yaml", func(s string) string {
			return strings.Replace(s, "addresses: [", "addresses: [redis://:"+marked("redis-password")+"@store:6379, ", 1)
		}},
		{"sluice.yaml", func(s string) string { return strings.Replace(s, "hash.key", marked("hash-key"), 1) }},
		{"sluice.yaml", func(s string) string {
			return strings.Replace(s, "postgresFile: ", "postgresFile: postgres://sluice:"+marked("postgres-password")+"@db/sluice", 1)
		}},
		{"sluice.yaml", func(s string) string {
			return strings.Replace(s, `url: "http://`, `url: "http://me:`+marked("worker-key")+"@", 1)
		}},
		{"sluice.yaml", func(s string) string { return strings.Replace(s, "admin.token", "worker.key", 1) }},
		{"sluice.yaml", func(s string) string { return s + "{{{ " + key }},
		{"tenants.yaml", func(s string) string { return s + "{{{ " + key }},
		{"tenants.yaml", func(s string) string { return s + "    - { id: copy, sha256: " + key + " }\n" }},
		{"tenants.yaml", func(s string) string { return strings.Replace(s, "team: search", "team: search\n    secret: "+key, 1) }},
		{"tenants.yaml", func(s string) string { return strings.Replace(s, "id: acme", "id: "+key+"/", 1) }},
		{"prices.yaml", func(s string) string { return strings.Replace(s, "500000", key, 1) }},
		{"worker.key", func(string) string { return marked("worker-key") + " and more" }},
		{"worker.key", func(string) string { return "" }},
		{"cache.key", func(s string) string { return s[:20] }},
		{"policies/tool-use.yaml", func(s string) string { return s + "\n---\nkind: Nothing\n" }},
	} {
		name := filepath.Join(k.d.dir, change.file)
		text, err := os.ReadFile(name)
		if err != nil {
			k.Fatal(err)
		}
		changed := change.edit(string(text))
		if changed == string(text) {
			k.Fatalf("%s is not changed", change.file)
		}
		write(k.T, k.d.dir, map[string]string{change.file: changed})
		k.admin(http.StatusConflict, "POST", "/admin/reload", marked("admin-token"))
		k.admin(http.StatusOK, "GET", "/debug/policies", marked("admin-token"))
		k.run("check", "-c", k.file)
		write(k.T, k.d.dir, map[string]string{change.file: string(text)})
	}
	k.admin(http.StatusOK, "POST", "/admin/reload", marked("admin-token"))
	k.child.signal(k.T, syscall.SIGHUP)
	k.ask()
}

// operatorPages reads every page of the admin listener, with the token and
// without.
func (k *keeping) operatorPages() {
	k.Helper()
	k.secrets.Add("a wrong admin token", marked("wrong-admin-token"))
	for _, path := range []string{"/debug/workers", "/debug/predictions", "/debug/policies"} {
		k.admin(http.StatusOK, "GET", path, marked("admin-token"))
		k.admin(http.StatusUnauthorized, "GET", path, marked("wrong-admin-token"))
		k.admin(http.StatusUnauthorized, "GET", path+"?token="+marked("admin-token"), "")
	}
	k.admin(http.StatusUnauthorized, "POST", "/admin/reload", marked("wrong-admin-token"))
	k.admin(http.StatusOK, "GET", "/metrics", marked("admin-token"))
}

// drain ends the gateway while it serves.
func (k *keeping) drain() {
	k.Helper()
	k.leave()
	k.child.stop(k.T)
	k.out = append(k.out, k.child.out.String())
}

// crash ends a gateway as a fatal error of the runtime would, with the stacks of
// all its goroutines.
func (k *keeping) crash() {
	k.Helper()
	k.serve("GOTRACEBACK=all")
	for _, w := range k.d.workers {
		w.SetFault(simworker.Fault{Stall: -1})
	}
	public, _, _ := k.child.addresses()
	for range 4 {
		c := gatewaytest.DialTLS(k.T, public, k.cert.Client)
		c.Send("POST", chatPath, chat(true, ""), "Authorization: "+k.auth("acme"))
	}
	soon(k.T, "the workers to have the requests", stackPatience, func() bool { return open(k.d) >= 4 })
	k.child.signal(k.T, syscall.SIGQUIT)
	<-k.child.ended
	for _, w := range k.d.workers {
		w.SetFault(simworker.Fault{})
	}
	if said := k.child.out.String(); !strings.Contains(said, "goroutine ") {
		k.Error("the crash shows no stacks")
	}
	k.out = append(k.out, k.child.out.String())
}

// badStarts starts gateways that can't.
func (k *keeping) badStarts() {
	k.Helper()
	dir := k.TempDir()
	for i, dsn := range []string{
		k.server.DSN("nobody_made_this") + "&password=" + marked("postgres-password"),
		"postgres://sluice:" + marked("postgres-password") + "@[::bad/db",
		"postgres://sluice:" + marked("postgres-password") + "@localhost:port/db",
		"host=localhost password=" + marked("postgres-password"),
		"mysql://sluice:" + marked("postgres-password") + "@localhost/db",
	} {
		name := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(name, []byte(dsn), 0o600); err != nil {
			k.Fatal(err)
		}
		text, err := os.ReadFile(k.file)
		if err != nil {
			k.Fatal(err)
		}
		from := bytes.Index(text, []byte("postgresFile: ")) + len("postgresFile: ")
		changed := slices.Concat(text[:from], []byte(name), text[from+bytes.IndexByte(text[from:], ','):])
		file := filepath.Join(k.d.dir, "bad.yaml")
		if err := os.WriteFile(file, changed, 0o600); err != nil {
			k.Fatal(err)
		}
		k.run("check", "-c", file)
		if code := k.run("serve", "-c", file); code == exitOK {
			k.Errorf("a gateway started with %q for a database", strings.ReplaceAll(dsn, marked("postgres-password"), "(password)"))
		}
	}
}

// run runs a command to its end and takes note of what it prints.
func (k *keeping) run(args ...string) (code int) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), childPatience)
	defer cancel()
	var out syncBuffer
	code = execute(ctx, time.Now, args, strings.NewReader(""), &out, &out)
	k.out = append(k.out, out.String())
	return code
}

// commands looks at the files with what an operator has for that.
func (k *keeping) commands() {
	k.Helper()
	month := time.Now().UTC().Format("2006-01")
	for _, args := range [][]string{
		{"check", "-c", k.file}, {"keys", "list", "--tenants", filepath.Join(k.d.dir, "tenants.yaml")},
		{"chargeback", "export", "-c", k.file, "--period", month}, {"policy", "test", filepath.Join(k.d.dir, "policies")}, {"version"},
	} {
		k.run(args...)
	}
}

// search looks for every secret in all that there is.
func (k *keeping) search() {
	k.Helper()
	var dumps [2][]byte
	for i, database := range []string{"t1", "t2"} {
		var err error
		if dumps[i], err = k.server.Dump(database); err != nil {
			k.Fatal(err)
		}
	}
	k.store.Shutdown()
	kept, err := os.ReadFile(filepath.Join(k.stored, "dump.rdb"))
	if err != nil {
		k.Fatal(err)
	}
	told := map[string][]byte{
		"what processes said": []byte(strings.Join(k.out, "\n")), "answers to clients": k.answers.Bytes(),
		"answers to operators":  k.pages.Bytes(),
		"the ledger's database": dumps[0], "the keys' database": dumps[1], "the store": kept,
	}
	maps.Copy(told, k.files())
	for what, words := range map[string][]string{
		"what processes said":   {"level=DEBUG", "msg=request", "cannot reload", "goroutine ", "draining", "reload error", "does not take rows"},
		"answers to clients":    {"invalid_api_key", "rate_limit_exceeded", "policy_denied", "upstream_error", "upstream_timeout", "invalid_request"},
		"the ledger's database": {"client_aborted", "upstream_error", "completed", "acme"},
		"the keys' database":    {"no reason"},
		"the store":             {"{sluice}"},
		"decisions.jsonl":       {`"decision_id"`},
	} {
		for _, word := range words {
			if !bytes.Contains(told[what], []byte(word)) {
				k.Errorf("%s has no %q: the test has not seen what it is about", what, word)
			}
		}
	}
	for what, text := range told {
		found := k.secrets.Find(text)
		if what != "answers to clients" {
			found = append(found, k.prompts.Find(text)...)
		}
		for _, f := range found {
			k.Errorf("%s: %s", what, f)
		}
	}
}

// files are those that gateways have written.
func (k *keeping) files() map[string][]byte {
	k.Helper()
	files := make(map[string][]byte)
	err := filepath.WalkDir(k.d.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(k.d.dir, path)
		if err != nil || slices.Contains(k.inputs, name) {
			return err
		}
		files[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		k.Fatal(err)
	}
	return files
}
