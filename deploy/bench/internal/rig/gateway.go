package rig

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Policies has bench.yaml: limits that no run reaches, so that all of them are
// counted and none refuses.
//
//go:embed policies
var Policies embed.FS

// BenchPolicy is the text of policies/bench.yaml.
func BenchPolicy() string {
	text, err := Policies.ReadFile("policies/bench.yaml")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(text)
}

// GatewaySpec is a gateway to start.
type GatewaySpec struct {
	Sluice, Name string // the program; a name for messages and the log
	Dir          string // where the log goes, and a folder with the gateway's own files
	TLS          string // tls of the public listener, as a flow mapping; empty: none
	// Config is all sections but listen. It may name tenants.yaml, policies, prices.yaml,
	// cache.key and a ledger in the same folder.
	Config string
	// Files are by name within the folder; tenants.yaml and policies/… are expected.
	Files map[string]string
	// Tenants get an API key each.
	Tenants []string
	Env     []string // added to the driver's own
}

// Gateway is a gateway as one would run it: keys, policies, prices, a ledger.
type Gateway struct {
	Proc          *Process
	Dir           string            // of its files
	Public, Admin string            // addresses
	Token         string            // of the admin listener
	Keys          map[string]string // by tenant
}

var keyPattern = regexp.MustCompile(`slk_[A-Za-z0-9_-]+`)

// StartGateway writes the files, makes the keys and starts the gateway. It does
// not wait until it is ready. The caller stops Proc.
func StartGateway(spec GatewaySpec) (*Gateway, error) {
	dir, err := os.MkdirTemp(spec.Dir, spec.Name+"-")
	if err != nil {
		return nil, err
	}
	addrs, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	secret := make([]byte, 48)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	g := &Gateway{Dir: dir, Public: addrs[0], Admin: addrs[1], Token: fmt.Sprintf("%x", secret[:16]), Keys: make(map[string]string)}
	listen := fmt.Sprintf("{ address: %q }", g.Public)
	if spec.TLS != "" {
		listen = fmt.Sprintf("{ address: %q, tls: %s }", g.Public, spec.TLS)
	}
	files := map[string]string{
		"sluice.yaml": fmt.Sprintf("listen:\n  public: %s\n  admin: { address: %q, tokenFile: admin.token }\n%s", listen, g.Admin, spec.Config),
		"cache.key":   string(secret[16:]), "admin.token": g.Token,
	}
	maps.Copy(files, spec.Files)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	for _, tenant := range spec.Tenants {
		if g.Keys[tenant], err = createKey(spec.Sluice, filepath.Join(dir, "tenants.yaml"), tenant); err != nil {
			return nil, err
		}
	}
	g.Proc, err = Start(spec.Dir, spec.Name, nil, spec.Env, spec.Sluice, "serve", "-c", filepath.Join(dir, "sluice.yaml"))
	return g, err
}

func createKey(sluice, tenants, tenant string) (string, error) {
	out, err := exec.Command(sluice, "keys", "create", "--tenants", tenants, "--tenant", tenant).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot create a key for %s: %w\n%s", tenant, err, out)
	}
	key := string(keyPattern.Find(out))
	if key == "" {
		return "", fmt.Errorf("cannot find the key in what sluice keys create printed for %s", tenant)
	}
	return key, nil
}

// Prices are of one model in one currency.
func Prices(model string) string {
	return "prices:\n  - { model: " + model + ", currency: EUR, input: 500000, cachedInput: 50000, output: 1500000, validFrom: 2026-01-01 }\n"
}

// WorkerList is the workers as entries of a pool's list, indented.
func WorkerList(workers []Worker) string {
	var sb strings.Builder
	for _, w := range workers {
		fmt.Fprintf(&sb, "      - { name: %s, url: %q }\n", w.Name, w.URL)
	}
	return sb.String()
}

// Page reads a page of the admin listener, such as /debug/workers.
func (g *Gateway) Page(ctx context.Context, path string) ([]byte, error) {
	return Get(ctx, "http://"+g.Admin+path, g.Token, nil)
}

// Ready is an error unless the gateway serves and follows the events of so
// many workers.
func (g *Gateway) Ready(ctx context.Context, workers int) error {
	if _, err := Get(ctx, "http://"+g.Public+"/readyz", "", nil); err != nil {
		return err
	}
	text, err := g.Page(ctx, "/debug/workers")
	if err != nil {
		return err
	}
	var page struct {
		Workers []struct {
			Events []struct {
				Connected bool `json:"connected"`
			} `json:"events"`
		} `json:"workers"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return fmt.Errorf("cannot read /debug/workers: %w", err)
	}
	connected := 0
	for _, w := range page.Workers {
		if len(w.Events) > 0 && w.Events[0].Connected {
			connected++
		}
	}
	if connected < workers {
		return fmt.Errorf("%d of %d workers' events are connected", connected, workers)
	}
	return nil
}
