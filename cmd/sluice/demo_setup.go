package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/sluicegate/sluice/policies"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/scoring/simworker/model"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/tenancy/authn"
)

// demoModel is the model that the simulated workers serve.
const demoModel = "demo-chat"

// demoTenants are the tenants of the demo, as the starter policies know them.
var demoTenants = []struct{ id, team, tier, note string }{
	{"acme", "search", "gold", "may declare what its prompts contain"},
	{"globex", "support", "silver", "middle limits"},
	{"initech", "interns", "bronze", "small limits, no tools"},
}

// demoWorkers are the simulated workers by pool.
var demoWorkers = []struct{ name, pool string }{
	{"general-1", "general"}, {"general-2", "general"}, {"restricted-1", "restricted"},
}

// demo is a whole platform on this machine: simulated workers, and a gateway
// before them that runs from ordinary files in a temporary folder.
type demo struct {
	dir     string
	workers map[string]*simworker.Worker // by name
	keys    map[string]string            // credential by tenant
	native  bool                         // the gateway tokenises by itself
	cfg     *Config
	tok     simTokenizer
}

// demoOptions are what the command line may change.
type demoOptions struct {
	public, admin string  // addresses
	timeScale     float64 // of the workers
	// queue has work of one class wait for that of another, see demoClasses.
	queue bool
	// worker changes each worker's configuration; nil: it stays.
	worker func(*simworker.Config)
}

// newDemo starts the workers and writes the files. Close ends and removes them.
func newDemo(opts demoOptions, log *slog.Logger) (d *demo, err error) {
	d = &demo{workers: make(map[string]*simworker.Worker), keys: make(map[string]string)}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return d, fmt.Errorf("cannot make a folder for the demo: %w", err)
	}
	if err = d.startWorkers(opts, log); err != nil {
		return d, err
	}
	if err = d.writeFiles(opts); err != nil {
		return d, fmt.Errorf("cannot write the demo's files: %w", err)
	}
	d.cfg, _, err = LoadConfig(filepath.Join(d.dir, "sluice.yaml"))
	return d, err
}

// Close ends the workers and removes the folder.
func (d *demo) Close() error {
	var errs []error
	for _, w := range d.workers {
		errs = append(errs, w.Close())
	}
	if d.tok.local != nil {
		errs = append(errs, d.tok.local.Close())
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

func (d *demo) startWorkers(opts demoOptions, log *slog.Logger) error {
	var tok simworker.Tokenizer = simworker.NewByteTokenizer()
	local, err := tokenize.LoadFS(model.FS, tokenize.Options{})
	switch {
	case err == nil:
		size, err := vocabularySize(model.FS)
		if err != nil {
			return err
		}
		d.native, d.tok = true, simTokenizer{local: local, size: size}
		tok = &d.tok
	case !errors.Is(err, tokenize.ErrNoNative):
		return fmt.Errorf("cannot load the demo's tokenizer: %w", err)
	}
	for i, w := range demoWorkers {
		cfg := simworker.DefaultConfig()
		cfg.Name, cfg.Model, cfg.Seed, cfg.TimeScale = w.name, demoModel, uint64(i+1), opts.timeScale
		cfg.EventsAddr, cfg.ReplayAddr = "127.0.0.1:0", "127.0.0.1:0"
		cfg.EnablePromptTokensDetails, cfg.FaultAPI, cfg.Log = true, true, log
		cfg.MaxModelLen = demoContext
		if opts.worker != nil {
			opts.worker(&cfg)
		}
		worker, err := simworker.Start(cfg, tok)
		if err != nil {
			return fmt.Errorf("cannot start the simulated worker %s: %w", w.name, err)
		}
		d.workers[w.name] = worker
	}
	return nil
}

// demoContext is the context length of the demo's model, in tokens.
const demoContext = 16384

// simTokenizer lends a tokenizer of the gateway's to the simulated workers.
type simTokenizer struct {
	local *tokenize.Tokenizer
	size  int
}

// EncodeChat implements simworker.Tokenizer.
func (t *simTokenizer) EncodeChat(body []byte) ([]uint32, error) {
	var p tokenize.Prompts
	if err := t.local.Append(context.Background(), &p, tokenize.Chat, body); err != nil {
		return nil, err
	}
	return p.IDs, nil
}

// EncodeCompletion implements simworker.Tokenizer.
func (t *simTokenizer) EncodeCompletion(body []byte) ([][]uint32, error) {
	var p tokenize.Prompts
	if err := t.local.Append(context.Background(), &p, tokenize.Completion, body); err != nil {
		return nil, err
	}
	out := make([][]uint32, p.Len())
	for i := range out {
		out[i] = p.At(i)
	}
	return out, nil
}

// Decode implements simworker.Tokenizer.
func (t *simTokenizer) Decode(ids []uint32) string { return t.local.Decode(ids, true) }

// VocabSize implements simworker.Tokenizer.
func (t *simTokenizer) VocabSize() int { return t.size }

// vocabularySize counts the ordinary tokens of a tokenizer.json.
func vocabularySize(fsys fs.FS) (int, error) {
	text, err := fs.ReadFile(fsys, "tokenizer.json")
	if err != nil {
		return 0, fmt.Errorf("cannot read the tokenizer: %w", err)
	}
	var file struct {
		Model struct {
			Vocab map[string]int `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return 0, fmt.Errorf("cannot read the tokenizer: %w", err)
	}
	return len(file.Model.Vocab), nil
}

// writeFiles writes what an operator would: the configuration, the tenants
// with their keys, the prices, the policies, the tokenizer.
func (d *demo) writeFiles(opts demoOptions) error {
	tenants, trusted, err := d.tenantsFile()
	if err != nil {
		return err
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	if err := os.CopyFS(filepath.Join(d.dir, "policies"), policies.Starter()); err != nil {
		return err
	}
	if opts.queue {
		if err := os.WriteFile(filepath.Join(d.dir, "policies", "demo-classes.yaml"), []byte(demoClasses), 0o600); err != nil {
			return err
		}
	}
	tokenizer := ""
	if d.native {
		tokenizer = "tokenizer"
		if err := os.CopyFS(filepath.Join(d.dir, tokenizer), model.FS); err != nil {
			return err
		}
	}
	config, err := d.configFile(opts, trusted, tokenizer)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"tenants.yaml": tenants, "prices.yaml": []byte(demoPrices), "cache.key": key, "sluice.yaml": config,
	} {
		if err := os.WriteFile(filepath.Join(d.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// tenantsFile makes the tenants, one key each, and returns the id of the
// principal that may declare labels.
func (d *demo) tenantsFile() (text []byte, trusted string, err error) {
	text = []byte("tenants:\n")
	for _, t := range demoTenants {
		key, err := authn.NewKey()
		if err != nil {
			return nil, "", err
		}
		key.Name, key.Created = "demo", time.Now()
		d.keys[t.id] = key.Reveal()
		if trusted == "" {
			trusted = "key:" + key.ID
		}
		text = fmt.Appendf(text, "  - id: %s\n    team: %s\n    tier: %s\n    expose: { worker: true, policy: true, overhead: true }\n    keys:\n", t.id, t.team, t.tier)
		text = key.AppendYAML(text, 6)
	}
	return text, trusted, nil
}

const demoPrices = `# Micro-units (millionths) of the currency for a million tokens.
prices:
  - { model: demo-chat, currency: EUR, input: 500000, cachedInput: 50000, output: 1500000, validFrom: 2026-01-01 }
`

var demoConfig = template.Must(template.New("sluice.yaml").Parse(`listen:
  public: { address: "{{.Public}}" }
  admin: { address: "{{.Admin}}" }
tenants: { file: tenants.yaml }
policy: { dir: policies, defaultMaxTokens: 256, labelPrincipals: ["{{.Trusted}}"]{{if .Queue}}, headers: [{{.Work}}]{{end}} }
{{- if .Queue}}
qos: { classes: { batch: { maxQueue: {{.Queue}}, share: 0.1, preemptible: true } } }
{{- end}}
cacheIsolation: { default: tenant, keyFile: cache.key }
models:
  - { name: {{.Model}}, aliases: [default], family: demo, contextLength: {{.Context}}, defaultMaxTokens: 256{{if .Tokenizer}}, tokenizer: {{.Tokenizer}}{{end}} }
pools:
{{- range .Pools}}
  - name: {{.Name}}
    models: [{{$.Model}}]
    cacheSalt: [chat, completion, responses, messages, embeddings]
    workers:
{{- range .Workers}}
      - { name: {{.Name}}, url: "{{.URL}}" }
{{- end}}
{{- end}}
prices: { file: prices.yaml }
ledger: { path: ledger.db }
metrics: { tenants: [acme, globex] }
drain: { delay: 0s, deadline: 5s }
log: { level: warn, format: text }
`))

func (d *demo) configFile(opts demoOptions, trusted, tokenizer string) ([]byte, error) {
	type worker struct{ Name, URL string }
	type pool struct {
		Name    string
		Workers []worker
	}
	var pools []pool
	for _, w := range demoWorkers {
		if len(pools) == 0 || pools[len(pools)-1].Name != w.pool {
			pools = append(pools, pool{Name: w.pool})
		}
		p := &pools[len(pools)-1]
		p.Workers = append(p.Workers, worker{w.name, d.workers[w.name].URL()})
	}
	var text strings.Builder
	queue := 0
	if opts.queue {
		queue = demoBatchQueue
	}
	err := demoConfig.Execute(&text, map[string]any{
		"Queue": queue, "Work": demoWork,
		"Public": opts.public, "Admin": opts.admin, "Trusted": trusted, "Model": demoModel,
		"Context": demoContext, "Tokenizer": tokenizer, "Pools": pools,
	})
	return []byte(text.String()), err
}

// say writes what a newcomer needs: where it runs, the keys, what to try.
func (d *demo) say(w io.Writer, a *app) {
	base, admin := a.baseURL(), a.admin.Addr()
	token, err := readSecretText(d.cfg.adminTokenFile())
	if err != nil {
		token = "(the token can't be read: " + err.Error() + ")"
	}
	fmt.Fprintf(w, "Sluice is serving %s on %s (metrics: http://%s/metrics)\n", demoModel, base, admin)
	fmt.Fprintln(w, "The workers are simulated: real HTTP, real ZMQ cache events, a modelled GPU; their text is noise.")
	if !d.native {
		fmt.Fprintln(w, "This build has no native tokenizers: the gateway asks the workers' /tokenize.")
	}
	fmt.Fprintln(w)
	for _, p := range demoWorkers {
		fmt.Fprintf(w, "  worker  %-13s pool %-11s %s\n", p.name, p.pool, d.workers[p.name].URL())
	}
	for _, t := range demoTenants {
		fmt.Fprintf(w, "  tenant  %-13s tier %-11s %s   (%s)\n", t.id, t.tier, d.keys[t.id], t.note)
	}
	chat := func(tenant, extra, body string) string {
		return fmt.Sprintf("curl -s %s/v1/chat/completions -H 'Authorization: Bearer %s' -H 'Content-Type: application/json'%s -d '%s'", base, d.keys[tenant], extra, body)
	}
	messages := `"messages":[{"role":"user","content":"Tell me about rivers."}]`
	fmt.Fprintln(w, "\nTry, in another terminal:")
	for _, try := range []struct{ what, line string }{
		{"a stream", chat("acme", " -N", `{"model":"demo-chat","stream":true,"max_tokens":20,`+messages+`}`)},
		{"restricted data goes to the restricted pool (see x-sluice-worker)", chat("acme", " -i -H 'x-sluice-content-labels: pii'", `{"model":"demo-chat","max_tokens":8,`+messages+`}`)},
		{"a policy says no", chat("initech", " -i", `{"model":"demo-chat",`+messages+`,"tools":[{"type":"function","function":{"name":"shell","parameters":{"type":"object"}}}]}`)},
		{"a burst of batch work: what finds no room to wait is told when to come again; ask for other things meanwhile", fmt.Sprintf(
			`for i in $(seq 60); do curl -s -o /dev/null -w '%%{http_code} after %%{time_total} s, Retry-After %%header{retry-after}\n' %s/v1/chat/completions -H 'Authorization: Bearer %s' -H 'Content-Type: application/json' -H '%s: batch' -d "{\"model\":\"%s\",\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"$i $(seq $i 700 | tr '\n' ' ')\"}]}" & done; wait`, base, d.keys["acme"], demoWork, demoModel)},
		{"what waits, and who was refused and why", fmt.Sprintf("curl -s http://%s/debug/queue -H 'Authorization: Bearer %s'", admin, token)},
		{"where requests went and why", fmt.Sprintf("curl -s http://%s/debug/predictions -H 'Authorization: Bearer %s'", admin, token)},
	} {
		fmt.Fprintf(w, "\n# %s\n%s\n", try.what, try.line)
	}
	fmt.Fprintf(w, "\nFiles: %s (removed at the end). Stop with Ctrl-C.\n", d.dir)
}
