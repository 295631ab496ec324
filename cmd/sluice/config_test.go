package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew from what the code does")

// golden compares got with the file, or writes the file under -rewrite.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (run with -rewrite to make it)", err)
	}
	gotLines, wantLines := strings.SplitAfter(got, "\n"), strings.SplitAfter(string(want), "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		g, w := lineOf(gotLines, i), lineOf(wantLines, i)
		if g != w {
			t.Errorf("%s:%d:\ngot  %q\nwant %q", file, i+1, g, w)
			return
		}
	}
}

func lineOf(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(the end)"
}

func TestBadConfigs(t *testing.T) {
	files, err := filepath.Glob("testdata/config/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			_, _, err := LoadConfig(file)
			if err == nil {
				t.Fatal("the configuration was accepted")
			}
			if _, ok := errors.AsType[*ConfigError](err); !ok {
				t.Fatalf("got a %T, want a *ConfigError: %v", err, err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".err", err.Error()+"\n")
		})
	}
}

func TestLoadConfigFull(t *testing.T) {
	got, warnings, err := LoadConfig("testdata/config/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join("testdata/config", name) }
	want := &Config{
		Listen: ListenConfig{
			Public: PublicListenConfig{Address: "0.0.0.0:8443", TLS: TLSConfig{MinVersion: "1.3"}},
			Admin: AdminListenConfig{
				Address: "10.0.0.1:9090", TokenFile: in("admin.token"), MetricsOpen: true, Hosts: []string{"sluice-admin.example"}, TLS: TLSConfig{MinVersion: "1.3"},
			},
		},
		Limits: LimitsConfig{
			BodyBytes: MiB, HeaderBytes: 16 * KiB, HeaderRead: 6 * time.Second, BodyRead: 7 * time.Second, BodyIdle: 8 * time.Second, ConnectTimeout: 100 * time.Millisecond,
			FirstByteStream: time.Minute, FirstByteUnary: 2 * time.Minute, StreamIdle: 3 * time.Second,
			Connections: 2000, ConnectionsPerAddress: 100,
			ClientWrite: 4 * time.Second, IdleConnection: 5 * time.Second, ResponseBytes: 2 * MiB, EventBytes: MiB, RetryShare: 0.5, MemoryBytes: 64 * MiB,
		},
		Tenants:   TenantsConfig{File: in("tenants.yaml")},
		Responses: ResponsesConfig{Store: true, Keep: 10 * time.Minute, Entries: 500},
		Keys:      KeysConfig{RevokedFile: in("revoked"), UsedFile: "none", PostgresFile: in("ledger.dsn"), MaxStale: time.Hour, WarnBefore: 24 * time.Hour, CutRunning: true},
		Identity: IdentityConfig{
			JWT: []IssuerConfig{
				{
					Issuer: "https://login.example", Audiences: []string{"sluice", "api"}, Algorithms: []string{"ES256"}, JWKSURL: "https://login.example/keys",
					CacheFile: in("login.keys"), CAFile: in("clients.pem"), Skew: 30 * time.Second, MaxLifetime: time.Hour,
					Map: ClaimMapConfig{Tenant: "claims.org", Team: "claims.?dept", Labels: "{'env': 'prod'}", Groups: "claims.groups", Scopes: "claims.scope.split(' ')"},
				},
				{
					Issuer: "fixed", Audiences: []string{"sluice"}, Algorithms: []string{"RS256", "ES256"}, JWKSFile: in("keys.jwks"), Skew: time.Minute,
					Map: ClaimMapConfig{Tenant: "'acme'"},
				},
			},
			MTLS: MTLSConfig{ClientAuth: "optional", Unmatched: "refuse"},
			Proxies: []ProxyConfig{{
				Issuer: "edge", Networks: []string{"10.0.0.0/8"}, JWKSFile: in("keys.jwks"), Algorithms: []string{"EdDSA"}, Audience: "gateway", MaxAge: 30 * time.Second,
				Map: ClaimMapConfig{Tenant: "claims.org"},
			}},
		},
		Policy: PolicyConfig{
			Dir: in("policies"), AllowEmpty: true, Headers: []string{"x-team"}, LabelPrincipals: []string{"key:k1"}, Classes: []string{"fast", "slow"},
			DefaultClass: "slow", DefaultMaxTokens: 100, Claims: map[string]string{"department": "string", "roles": "list(string)"},
		},
		CacheIsolation: CacheIsolationConfig{Default: "principal", KeyFile: in("cache.key")},
		QoS: QoSConfig{
			Enabled: true,
			Classes: map[string]QoSClassConfig{
				"fast": {Target: 500 * time.Millisecond, MaxWait: 5 * time.Second, Bound: 600 * time.Millisecond, MaxQueue: 100, KeepAlive: true},
				"slow": {Target: byPlace, MaxWait: byPlace, Bound: byPlace, Share: 0.25, Preemptible: true, WorkerPriority: 10},
			},
			MaxRequests: 5000, MaxBytes: 64 * MiB,
		},
		Labels: LabelsConfig{
			Claim: "labels", MaxBytes: 2 * MiB, Timeout: 20 * time.Millisecond,
			Detectors: map[string]string{"payment-card": "pci", "email": "pii"},
			Custom:    []CustomLabelConfig{{Name: "project", Label: "secret", Patterns: []string{`FALCON-\d+`}, Keywords: []string{"falcon"}}},
			External: []ExternalLabelConfig{
				{
					Name: "presidio", Shape: "presidio", URL: "https://presidio.example", Language: "de", Entities: []string{"PERSON"},
					Labels: map[string]string{"PERSON": "pii", "DATE_TIME": ""}, Threshold: 0.7, Timeout: 100 * time.Millisecond,
					Parallel: 4, MaxText: 10 * KiB, APIKeyFile: in("admin.token"),
				},
				{
					Name: "toxic", Shape: "moderation", URL: "http://127.0.0.1:8080", Model: "omni", Language: "en",
					Labels: map[string]string{"hate": "hate"}, Threshold: 0.5, Timeout: 300 * time.Millisecond, Parallel: 8,
				},
			},
		},
		DecisionLog: DecisionLogConfig{
			Path: in("decisions.jsonl"), MaxBytes: MiB, MaxFiles: 3, Sample: 0.25, Queue: 100, QueueBytes: 2 * MiB, OnFull: "Refuse",
			HashKeyFile: in("cache.key"), Plain: []string{"source_ip"}, Mask: []string{"/input/request/tool_names"}, Drop: []string{"/message"}, Gateway: "gw-1",
		},
		Reload: ReloadConfig{Poll: time.Minute},
		Models: []ModelConfig{
			{
				Name: "org/tiny", Aliases: []string{"default", "8"}, Upstream: "tiny", Family: "qwen", Tokenizer: in("tokenizer"),
				ChatTemplate: in("tokenizer/chat.jinja"), ContentFormat: "openai", TemplateKwargs: `{"enable_thinking": false}`,
				ContextLength: 8192, DefaultMaxTokens: 1024, BytesPerToken: 4,
			},
			{Name: "other", Upstream: "other", Tokenizer: in("tokenizer"), ContentFormat: "auto", ContextLength: 100, DefaultMaxTokens: 100, BytesPerToken: 3},
			{Name: "tune", Upstream: "tune-v1", Tokenizer: in("tokenizer"), ContentFormat: "auto", ContextLength: 100, DefaultMaxTokens: 100, BytesPerToken: 3},
		},
		Pools: []PoolConfig{{
			Name: "general", Models: []string{"org/tiny", "other"}, Adapters: []string{"tune"}, Labels: map[string]string{"zone": "eu"}, CacheSalt: []string{"chat", "completion"}, Endpoints: []string{"chat", "completion", "responses"}, APIKeyFile: in("admin.token"),
			GPUs: 2, PriorityScheduling: true, HourlyCost: []HourlyCostConfig{
				{Amount: 8_000_000, Currency: "USD", GPUs: 6, ValidTo: "2026-07-01"},
				{Amount: 9_000_000, Currency: "USD", GPUs: 6, ValidFrom: "2026-07-01", ValidTo: "2027-01-01T00:00:00+01:00"},
			},
			Workers: []WorkerConfig{
				{Name: "w1", URL: "http://127.0.0.1:8101/", Events: "tcp://127.0.0.1:5617", Replay: "tcp://127.0.0.1:5618"},
				{Name: "w2", URL: "https://[::1]:8102", Events: EventsNone},
				{
					Name: "w3", URL: "http://127.0.0.1:8103", Events: EventsAuto, Replay: "tcp://127.0.0.1:5628",
					EventsBind: "tcp://*:6001", EventsFrom: "127.0.0.0/8", Ranks: 2,
				},
			},
			WorkersFrom: WorkersFromConfig{
				File: in("lists/good.yaml"), MaxWorkers: 8,
				DNS: DNSConfig{Type: "a", Port: 8000, Scheme: "http", Interval: 10 * time.Second, RemoveAfter: 3, Events: EventsAuto},
			},
		}, {
			Name: "found", Models: []string{"org/tiny"}, GPUs: 1,
			WorkersFrom: WorkersFromConfig{MaxWorkers: 16, DNS: DNSConfig{
				Name: "_http._tcp.workers.example", Type: "srv", Port: 8001, Scheme: "https", Interval: 30 * time.Second,
				RemoveAfter: 1, Server: "127.0.0.1:5353", Events: "tcp://*:5557", Replay: "tcp://*:5558",
			}},
		}},
		Health: HealthConfig{
			Interval: 2 * time.Second, Timeout: 500 * time.Millisecond, UnhealthyAfter: 3, HealthyAfter: 2, MetricsInterval: 5 * time.Second,
			ModelsInterval: 6 * time.Second, EjectAfter: 4, EjectBase: time.Second, EjectMax: time.Minute, DrainTimeout: time.Minute,
		},
		Tokens: TokensConfig{SampleEvery: 50, RemoteTimeout: 250 * time.Millisecond, RemoteParallel: 4, Parallel: 2, CacheBytes: 64 * MiB},
		Scoring: ScoringConfig{
			Strategy:  "least-loaded",
			BlockSize: 32, BatchTokens: 1024, MaxSeqs: 8, SpeculativeTTL: 2 * time.Second, LoadStale: time.Second, IdleHalfLife: time.Minute,
			Prior: PriorConfig{Base: 60 * time.Millisecond, PerKilo: 400 * time.Millisecond, PerSeq: time.Millisecond, Attention: 2 * time.Millisecond},
		},
		Prices: PricesConfig{File: in("prices.yaml")},
		Store: StoreConfig{LocalFraction: 0.25, Redis: RedisConfig{
			Addresses: []string{"sentinel-1:26379", "sentinel-2:26379"}, Sentinel: "limits",
			TLS:      RedisTLSConfig{Enabled: true, ServerName: "redis.internal"},
			Username: "gateway", PasswordFile: in("redis.password"), SentinelUsername: "watcher", SentinelPasswordFile: in("sentinel.password"),
			Prefix: "gw", Replica: "gw-1", Timeout: 15 * time.Millisecond, LeaseShare: 0.25,
		}},
		Ledger: LedgerConfig{Path: in("ledger.db"), PostgresFile: in("ledger.dsn"), Spool: 64 * MiB, CommitEvery: 20 * time.Millisecond, SyncIntents: true},
		Chargeback: ChargebackConfig{
			BillingAccount: BillingAccountConfig{ID: "cc-4711", Name: "Shared platform", Currency: "CHF"},
			Provider:       "Platform team", Publisher: "Somebody", InvoiceIssuer: "Platform team", SettleDelay: 48 * time.Hour,
		},
		Metrics:        MetricsConfig{Tenants: []string{"acme"}, TopTenants: 3, MaxSeries: 500},
		TrustedProxies: []string{"10.0.0.0/8", "2001:db8::1"},
		CORS:           CORSConfig{Origins: []string{"https://app.example", "http://localhost:3000"}, MaxAge: time.Hour},
		Drain:          DrainConfig{Delay: time.Second, Deadline: 10 * time.Second},
		Log:            LogConfig{Level: "debug", Format: "text"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	var warned []string
	for _, w := range warnings {
		warned = append(warned, w.Path)
	}
	if !slices.Equal(warned, []string{"listen.public.address", "listen.admin.address", "listen.admin.metricsOpen", "qos.classes.fast.keepAlive"}) {
		t.Errorf("got warnings %v, want those of clear text on two addresses, of open metrics and of keep-alives that are off", warnings)
	}
}

func TestLoadConfigMinimal(t *testing.T) {
	got, warnings, err := LoadConfig("testdata/config/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 0 {
		t.Errorf("got warnings %v, want none", warnings)
	}
	want := DefaultConfig()
	if !reflect.DeepEqual(got.Limits, want.Limits) || !reflect.DeepEqual(got.Health, want.Health) || !reflect.DeepEqual(got.Listen, want.Listen) {
		t.Errorf("defaults differ: got %+v", got)
	}
	if m := got.Models[0]; m.Upstream != "tiny" || m.DefaultMaxTokens != 4096 || m.BytesPerToken != 3 {
		t.Errorf("model defaults: got %+v", m)
	}
	if e := got.Pools[0].Workers[0].Events; e != EventsAuto {
		t.Errorf("events: got %q, want %q", e, EventsAuto)
	}
}

// A default is used again when the key is there without a value, as in `tls: { certFile: }`.
func TestEmptyValueIsTheDefault(t *testing.T) {
	data, err := os.ReadFile("testdata/config/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	data = append(data, "limits: { retries: , firstByteUnary: }\nlisten:\n  public: { tls: { certFile: , keyFile: } }\nlog:\n"...)
	got, _, err := parseConfig("testdata/config/x.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	if got.Limits.Retries != 2 || got.Limits.FirstByteUnary != 600*time.Second || got.Log.Level != "info" {
		t.Errorf("got %+v %+v, want the defaults", got.Limits, got.Log)
	}
}

func TestMissingConfigFile(t *testing.T) {
	_, _, err := LoadConfig("testdata/config/none.yaml")
	if err == nil || err.Error() != "cannot read the configuration: open testdata/config/none.yaml: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

func TestByteSize(t *testing.T) {
	f := func(text string, want ByteSize, ok bool) {
		t.Helper()
		got, err := ParseByteSize(text)
		if got != want || (err == nil) != ok {
			t.Errorf("ParseByteSize(%q) = %d, %v, want %d, ok %v", text, got, err, want, ok)
		}
		if ok {
			if back, err := ParseByteSize(got.String()); err != nil || back != got {
				t.Errorf("%q is written as %q, which reads as %d, %v", text, got.String(), back, err)
			}
		}
	}
	f("0", 0, true)
	f("17", 17, true)
	f("17B", 17, true)
	f("64KiB", 64<<10, true)
	f("32MiB", 32<<20, true)
	f("3GiB", 3<<30, true)
	f("1536MiB", 1536<<20, true)
	f("", 0, false)
	f("KiB", 0, false)
	f("-1KiB", 0, false)
	f("1.5MiB", 0, false)
	f("32MB", 0, false)
	f("32 MiB", 0, false)
	f("9999999999999GiB", 0, false)
}

func TestReadSecrets(t *testing.T) {
	if got, err := readSecretText("testdata/config/admin.token"); got != "an-admin-token" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for _, file := range []string{"empty.token", "words.token", "none.token"} {
		got, err := readSecretText(filepath.Join("testdata/config", file))
		if err == nil {
			t.Errorf("%s: got %q, want an error", file, got)
		} else if strings.Contains(err.Error(), "two") {
			t.Errorf("%s: the error quotes the secret: %v", file, err)
		}
	}
	if _, err := readKey("testdata/config/short.key"); err == nil {
		t.Error("a short key was accepted")
	}
}

// FuzzParseConfig: no input makes the decoder panic, and what it accepts is valid.
func FuzzParseConfig(f *testing.F) {
	for _, glob := range []string{"testdata/config/*.yaml", "testdata/config/bad/*.yaml"} {
		files, err := filepath.Glob(glob)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, _, err := parseConfig("testdata/config/fuzz.yaml", data)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		if len(cfg.Pools) == 0 || len(cfg.Models) == 0 || cfg.Limits.BodyBytes <= 0 {
			t.Errorf("accepted %+v", cfg)
		}
	})
}

// A configuration or a list of workers that would take the parser too much is refused with a place.
func TestDearConfigIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nested brackets": strings.Repeat("[", 1<<20), "blank lines": "policy: |\n" + strings.Repeat("\n", 1<<19), "a long mapping": strings.Repeat("a: 1\n", 20_000),
	} {
		d := yamlDecoder{file: "sluice.yaml"}
		c := DefaultConfig()
		d.decode([]byte(text), &c)
		if len(d.issues) != 1 || d.issues[0].Line < 1 || d.issues[0].Column < 1 {
			t.Errorf("%s: got %d issues: %.300v", name, len(d.issues), d.issues)
		}
	}
}
