package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Config is the whole configuration file of `sluice serve`, decoded and with defaults filled in. This
// file alone knows the format: the yaml tags are the keys, docs/configuration.md describes them, and a
// test keeps the two equal. Nothing changes a Config after LoadConfig has returned it.
//
// Every path is absolute, or relative to the working directory, by then: LoadConfig resolves the
// relative ones against the folder of the configuration file.
type Config struct {
	Listen         ListenConfig         `yaml:"listen"`
	Limits         LimitsConfig         `yaml:"limits"`
	Tenants        TenantsConfig        `yaml:"tenants"`
	Keys           KeysConfig           `yaml:"keys"`
	Identity       IdentityConfig       `yaml:"identity"`
	Policy         PolicyConfig         `yaml:"policy"`
	CacheIsolation CacheIsolationConfig `yaml:"cacheIsolation"`
	QoS            QoSConfig            `yaml:"qos"`
	Labels         LabelsConfig         `yaml:"labels"`
	DecisionLog    DecisionLogConfig    `yaml:"decisionLog"`
	Reload         ReloadConfig         `yaml:"reload"`
	Models         []ModelConfig        `yaml:"models"`
	Pools          []PoolConfig         `yaml:"pools"`
	Health         HealthConfig         `yaml:"health"`
	Tokens         TokensConfig         `yaml:"tokens"`
	Responses      ResponsesConfig      `yaml:"responses"`
	Scoring        ScoringConfig        `yaml:"scoring"`
	Prices         PricesConfig         `yaml:"prices"`
	Store          StoreConfig          `yaml:"store"`
	Ledger         LedgerConfig         `yaml:"ledger"`
	Chargeback     ChargebackConfig     `yaml:"chargeback"`
	Metrics        MetricsConfig        `yaml:"metrics"`
	TrustedProxies []string             `yaml:"trustedProxies"`
	CORS           CORSConfig           `yaml:"cors"`
	Drain          DrainConfig          `yaml:"drain"`
	Log            LogConfig            `yaml:"log"`
}

// ListenConfig holds the two listeners. The public one serves clients; the admin one serves /debug and /admin
// to holders of the admin token, and /metrics.
type ListenConfig struct {
	Public PublicListenConfig `yaml:"public"`
	Admin  AdminListenConfig  `yaml:"admin"`
}

// PublicListenConfig is the listener for clients.
type PublicListenConfig struct {
	Address string    `yaml:"address"` // host:port; port 0 takes a free one
	TLS     TLSConfig `yaml:"tls"`
}

// TLSConfig turns on TLS when CertFile and KeyFile are given; one without the other is an error.
type TLSConfig struct {
	CertFile   string `yaml:"certFile"` // PEM, leaf first
	KeyFile    string `yaml:"keyFile"`  // PEM
	MinVersion string `yaml:"minVersion"`
}

// Enabled reports whether the listener speaks TLS.
func (t TLSConfig) Enabled() bool { return t.CertFile != "" && t.KeyFile != "" }

// AdminListenConfig is the operator's listener. Without TokenFile it must be on a loopback address.
type AdminListenConfig struct {
	Address     string    `yaml:"address"`
	TokenFile   string    `yaml:"tokenFile"`   // text; surrounding white space is not part of the token. None: one is made
	MetricsOpen bool      `yaml:"metricsOpen"` // /metrics needs no token, although others can reach it
	Hosts       []string  `yaml:"hosts"`       // names by which it is called, beside addresses and localhost
	TLS         TLSConfig `yaml:"tls"`
}

// LimitsConfig bounds what one request or one connection may take. The defaults are those of the HTTP
// contract. There is no limit on a stream's total duration.
type LimitsConfig struct {
	BodyBytes        ByteSize      `yaml:"bodyBytes"`        // request body
	HeaderBytes      ByteSize      `yaml:"headerBytes"`      // request line and all headers together
	HeaderRead       time.Duration `yaml:"headerRead"`       // for all headers of a request to arrive
	BodyRead         time.Duration `yaml:"bodyRead"`         // for a whole body to arrive
	BodyIdle         time.Duration `yaml:"bodyIdle"`         // between two bytes of a body
	ConnectTimeout   time.Duration `yaml:"connectTimeout"`   // to a worker
	FirstByteStream  time.Duration `yaml:"firstByteStream"`  // from a worker, streaming
	FirstByteUnary   time.Duration `yaml:"firstByteUnary"`   // from a worker, not streaming
	StreamIdle       time.Duration `yaml:"streamIdle"`       // silence of a worker inside a stream
	ClientWrite      time.Duration `yaml:"clientWrite"`      // a client that does not read
	IdleConnection   time.Duration `yaml:"idleConnection"`   // a kept client connection without a request
	ResponseBytes    ByteSize      `yaml:"responseBytes"`    // an answer that does not stream
	EventBytes       ByteSize      `yaml:"eventBytes"`       // one server-sent event
	KeepAliveComment time.Duration `yaml:"keepAliveComment"` // between `: keep-alive` comments; 0 = off
	Retries          int           `yaml:"retries"`          // further workers tried after one failed before its first byte
	RetryShare       float64       `yaml:"retryShare"`       // the part of a pool's requests that may be sent on

	Connections           int `yaml:"connections"`           // of clients; 0: as many as descriptors and memory allow
	ConnectionsPerAddress int `yaml:"connectionsPerAddress"` // of one address; 0: a quarter of all

	MemoryBytes ByteSize `yaml:"memoryBytes"` // all bodies in flight together; 0: a quarter of the process's memory, or 1 GiB
}

// TenantsConfig names the file of tenants and their API keys.
type TenantsConfig struct {
	File string `yaml:"file"`
}

// PolicyConfig says where the policies are and which names they may use.
type PolicyConfig struct {
	Dir              string            `yaml:"dir"`             // read recursively
	AllowEmpty       bool              `yaml:"allowEmpty"`      // true starts although the folder holds no policy
	Headers          []string          `yaml:"headers"`         // request headers that policies may read, lower case
	LabelPrincipals  []string          `yaml:"labelPrincipals"` // ids of callers whose x-sluice-content-labels are believed
	Classes          []string          `yaml:"classes"`         // QoS classes, most urgent first
	DefaultClass     string            `yaml:"defaultClass"`
	DefaultMaxTokens int64             `yaml:"defaultMaxTokens"` // output limit of a request that names none, for models without their own
	Claims           map[string]string `yaml:"claims"`           // claim name to CEL type
}

// CacheIsolationConfig says who shares the workers' prefix caches when no policy says otherwise.
type CacheIsolationConfig struct {
	Default string `yaml:"default"` // none, tenant or principal
	KeyFile string `yaml:"keyFile"` // the file's bytes are the key, 32 or more; the same on every replica
}

// ModelConfig is one model that clients may name.
type ModelConfig struct {
	Name             string   `yaml:"name"`
	Aliases          []string `yaml:"aliases"`  // further names that clients may use
	Upstream         string   `yaml:"upstream"` // the workers' name for it; default: Name
	Family           string   `yaml:"family"`   // what policies see as request.model_family
	Tokenizer        string   `yaml:"tokenizer"`
	ChatTemplate     string   `yaml:"chatTemplate"`     // a file: the workers' --chat-template; default: the tokenizer's own
	ContentFormat    string   `yaml:"contentFormat"`    // the workers' --chat-template-content-format
	TemplateKwargs   string   `yaml:"templateKwargs"`   // the workers' --default-chat-template-kwargs, a JSON object
	ContextLength    int64    `yaml:"contextLength"`    // tokens, prompt and output together
	DefaultMaxTokens int64    `yaml:"defaultMaxTokens"` // 0: policy.defaultMaxTokens, or ContextLength if that is less
	BytesPerToken    float64  `yaml:"bytesPerToken"`    // for the estimate where there is no exact count
}

// PoolConfig is a group of workers that serve the same models and that policies can name.
type PoolConfig struct {
	Name       string            `yaml:"name"`
	Models     []string          `yaml:"models"`    // names from Config.Models, served by every worker
	Adapters   []string          `yaml:"adapters"`  // names from Config.Models: LoRA adapters, served by the workers that have them loaded
	Labels     map[string]string `yaml:"labels"`    // for requirePoolLabels of policies
	CacheSalt  []string          `yaml:"cacheSalt"` // operations for which its workers keep caches apart by cache_salt; "*": all. Nil: not said
	Endpoints  []string          `yaml:"endpoints"` // operations that its workers have routes for. Nil: as they say
	APIKeyFile string            `yaml:"apiKeyFile"`
	GPUs       int               `yaml:"gpus"` // of each worker
	// PriorityScheduling says that its engines run with --scheduling-policy priority.
	PriorityScheduling bool               `yaml:"priorityScheduling"`
	HourlyCost         []HourlyCostConfig `yaml:"hourlyCost"`
	Workers            []WorkerConfig     `yaml:"workers"`
	// WorkersFrom is a list that changes while the gateway runs, beside Workers.
	WorkersFrom WorkersFromConfig `yaml:"workersFrom"`
}

// WorkersFromConfig says where a pool's changing list of workers is: in a file or in the DNS, not both.
type WorkersFromConfig struct {
	File       string    `yaml:"file"` // a list of WorkerConfig, YAML or JSON
	DNS        DNSConfig `yaml:"dns"`
	MaxWorkers int       `yaml:"maxWorkers"` // the most workers of the list; it bounds their metrics
}

// Enabled reports whether the pool has such a list.
func (c *WorkersFromConfig) Enabled() bool { return c.File != "" || c.DNS.Name != "" }

// DNSConfig is a name whose records list workers. The resolver does not tell a record's TTL, so it is
// asked at an interval.
type DNSConfig struct {
	Name        string        `yaml:"name"`
	Type        string        `yaml:"type"`        // a, aaaa or srv
	Port        int           `yaml:"port"`        // of the workers' HTTP servers; srv records have their own
	Scheme      string        `yaml:"scheme"`      // http or https
	Interval    time.Duration `yaml:"interval"`    // between two answers
	RemoveAfter int           `yaml:"removeAfter"` // answers in a row that lack a worker remove it
	Server      string        `yaml:"server"`      // host:port of the DNS server; default: the system's
	Events      string        `yaml:"events"`      // as WorkerConfig.Events, with * for the worker's host
	Replay      string        `yaml:"replay"`      // as WorkerConfig.Replay, with * for the worker's host
	Ranks       int           `yaml:"ranks"`       // as WorkerConfig.Ranks
}

// WorkerConfig is one vLLM server.
type WorkerConfig struct {
	Name   string `yaml:"name"`   // unique among all pools; it appears in metrics and the ledger
	URL    string `yaml:"url"`    // http or https, without a path
	Events string `yaml:"events"` // auto, none, or the ZMQ endpoint tcp://host:port
	Replay string `yaml:"replay"` // ZMQ endpoint of the replay socket, or empty

	EventsBind string `yaml:"eventsBind"` // ZMQ endpoint of ours that the worker's publisher connects to, in place of events
	EventsFrom string `yaml:"eventsFrom"` // who may connect there; default: the host of URL
	Ranks      int    `yaml:"ranks"`      // data-parallel ranks behind configured endpoints: rank r uses port + r; 0: 1
}

// Values of WorkerConfig.Events beside an endpoint.
const (
	EventsAuto = "auto" // ask the worker's /kv_event_sources
	EventsNone = "none" // no cache view: route by load alone
)

// HealthConfig paces the health checks and the reading of the workers' /metrics, and says how a worker
// comes and goes.
type HealthConfig struct {
	Interval        time.Duration `yaml:"interval"`
	Timeout         time.Duration `yaml:"timeout"`
	UnhealthyAfter  int           `yaml:"unhealthyAfter"` // failed checks in a row
	HealthyAfter    int           `yaml:"healthyAfter"`   // passed checks in a row
	MetricsInterval time.Duration `yaml:"metricsInterval"`
	ModelsInterval  time.Duration `yaml:"modelsInterval"` // between looks at a worker's models, adapters and event endpoints
	EjectAfter      int           `yaml:"ejectAfter"`     // failed requests in a row
	EjectBase       time.Duration `yaml:"ejectBase"`      // the first time that such a worker is set aside; then doubling
	EjectMax        time.Duration `yaml:"ejectMax"`
	SlowStart       time.Duration `yaml:"slowStart"`    // from being ready to a full share of the requests
	DrainTimeout    time.Duration `yaml:"drainTimeout"` // how long a removed worker's requests are waited for
}

// TokensConfig bounds the work of finding prompts' token ids, in this process and at the workers.
type TokensConfig struct {
	SampleEvery    int           `yaml:"sampleEvery"`    // one request in so many is compared with a worker's /tokenize; 0 = none
	RemoteTimeout  time.Duration `yaml:"remoteTimeout"`  // for a worker's /tokenize to answer
	RemoteParallel int           `yaml:"remoteParallel"` // questions that one worker's /tokenize has at a time
	Parallel       int           `yaml:"parallel"`       // long prompts encoded at a time; 0 = one for each processor
	CacheBytes     ByteSize      `yaml:"cacheBytes"`     // memory of encoded segments, for each tokenizer
}

// ScoringConfig tunes the prediction of the time to first token. It describes an engine that nothing has
// been learned about yet; each worker's own values are learned from there.
type ScoringConfig struct {
	Strategy       string        `yaml:"strategy"`       // how a worker is chosen
	BlockSize      int           `yaml:"blockSize"`      // tokens, of a worker that has not said
	BatchTokens    int           `yaml:"batchTokens"`    // the engine's --max-num-batched-tokens
	MaxSeqs        int           `yaml:"maxSeqs"`        // the engine's --max-num-seqs
	SpeculativeTTL time.Duration `yaml:"speculativeTTL"` // how long a pick's own blocks count before events confirm them
	LoadStale      time.Duration `yaml:"loadStale"`      // the age at which a worker's reported load no longer counts
	IdleHalfLife   time.Duration `yaml:"idleHalfLife"`   // how fast what was learned about an unused worker fades
	Prior          PriorConfig   `yaml:"prior"`
}

// PriorConfig is what a pool's first worker is assumed to take.
type PriorConfig struct {
	Base      time.Duration `yaml:"base"`      // of any request
	PerKilo   time.Duration `yaml:"perKilo"`   // for 1,000 uncached prompt tokens
	PerSeq    time.Duration `yaml:"perSeq"`    // for each sequence running beside it
	Attention time.Duration `yaml:"attention"` // for 1,000 uncached tokens after 1,000 earlier ones
}

// fleet returns the scorer's configuration.
func (c *ScoringConfig) fleet(seed uint64) scoring.Config {
	f := scoring.DefaultConfig()
	f.Seed = seed
	if by, err := scoring.ParseStrategy(c.Strategy); err == nil { // Validate has reported the rest
		f.Strategy = by
	}
	f.BlockSize, f.BatchTokens, f.MaxSeqs = c.BlockSize, c.BatchTokens, c.MaxSeqs
	f.SpeculativeTTL, f.LoadStale, f.IdleHalfLife = c.SpeculativeTTL, c.LoadStale, c.IdleHalfLife
	f.Prior = scoring.Coefficients(c.Prior)
	return f
}

// defaultScoring returns the scorer's own defaults.
func defaultScoring() ScoringConfig {
	f := scoring.DefaultConfig()
	return ScoringConfig{
		Strategy:  f.Strategy.String(),
		BlockSize: f.BlockSize, BatchTokens: f.BatchTokens, MaxSeqs: f.MaxSeqs,
		SpeculativeTTL: f.SpeculativeTTL, LoadStale: f.LoadStale, IdleHalfLife: f.IdleHalfLife,
		Prior: PriorConfig(f.Prior),
	}
}

// PricesConfig names the price table; without one no request has a cost.
type PricesConfig struct {
	File string `yaml:"file"`
}

// MetricsConfig bounds the metrics.
type MetricsConfig struct {
	Tenants    []string `yaml:"tenants"`    // tenants with series of their own; all others are `other`
	TopTenants int      `yaml:"topTenants"` // so many more, those that use most
	MaxSeries  int      `yaml:"maxSeries"`  // hard cap on the series of tenants
}

// DrainConfig paces the shutdown.
type DrainConfig struct {
	Delay    time.Duration `yaml:"delay"`    // not ready, still accepting
	Deadline time.Duration `yaml:"deadline"` // from the signal to the end of the last request
}

// LogConfig sets the process's own log.
type LogConfig struct {
	Level  string `yaml:"level"`  // debug, info, warn or error
	Format string `yaml:"format"` // json or text
}

// DefaultConfig returns the configuration of an empty file. It is not valid by itself: tenants, models
// and pools have no default.
func DefaultConfig() Config {
	return Config{
		Listen: ListenConfig{
			Public: PublicListenConfig{Address: "127.0.0.1:8080", TLS: TLSConfig{MinVersion: "1.2"}},
			Admin:  AdminListenConfig{Address: "127.0.0.1:9090", TLS: TLSConfig{MinVersion: "1.2"}},
		},
		Limits: LimitsConfig{
			BodyBytes:        32 * MiB,
			HeaderBytes:      64 * KiB,
			HeaderRead:       10 * time.Second,
			BodyRead:         300 * time.Second,
			BodyIdle:         30 * time.Second,
			ConnectTimeout:   2 * time.Second,
			FirstByteStream:  120 * time.Second,
			FirstByteUnary:   600 * time.Second,
			StreamIdle:       60 * time.Second,
			ClientWrite:      30 * time.Second,
			IdleConnection:   75 * time.Second,
			ResponseBytes:    64 * MiB,
			EventBytes:       16 * MiB,
			KeepAliveComment: 15 * time.Second,
			Retries:          2,
			RetryShare:       0.2,
		},
		Policy: PolicyConfig{
			Classes:          []string{"critical", "interactive", "standard", "batch"},
			DefaultClass:     "standard",
			DefaultMaxTokens: 4096,
		},
		Keys:           defaultKeys(),
		Identity:       defaultIdentity(),
		CacheIsolation: CacheIsolationConfig{Default: "tenant"},
		QoS:            defaultQoS(),
		Labels:         defaultLabels(),
		DecisionLog:    defaultDecisionLog(),
		Reload:         defaultReload(),
		Responses:      defaultResponses(),
		Health: HealthConfig{
			Interval:        2 * time.Second,
			Timeout:         time.Second,
			UnhealthyAfter:  2,
			HealthyAfter:    1,
			MetricsInterval: 5 * time.Second,
			ModelsInterval:  30 * time.Second,
			EjectAfter:      3,
			EjectBase:       5 * time.Second,
			EjectMax:        2 * time.Minute,
			SlowStart:       10 * time.Second,
			DrainTimeout:    5 * time.Minute,
		},
		Tokens:  TokensConfig{SampleEvery: 200, RemoteTimeout: time.Second, RemoteParallel: 16, CacheBytes: 256 * MiB},
		Scoring: defaultScoring(),
		Store:   defaultStore(),
		Ledger:  defaultLedger(),

		Chargeback: defaultChargeback(),

		Metrics: MetricsConfig{MaxSeries: 10000},
		CORS:    defaultCORS(),
		Drain:   DrainConfig{Delay: 5 * time.Second, Deadline: 300 * time.Second},
		Log:     LogConfig{Level: "info", Format: "json"},
	}
}

// setDefaults fills a model before its keys are decoded.
func (m *ModelConfig) setDefaults() { m.BytesPerToken, m.ContentFormat = 3, "auto" }

// setDefaults fills a worker before its keys are decoded.
func (w *WorkerConfig) setDefaults() { w.Events = EventsAuto }

// setDefaults fills a pool before its keys are decoded.
func (p *PoolConfig) setDefaults() {
	p.GPUs = 1
	p.WorkersFrom = WorkersFromConfig{
		MaxWorkers: 64,
		DNS:        DNSConfig{Type: "a", Port: 8000, Scheme: "http", Interval: 10 * time.Second, RemoveAfter: 3, Events: EventsAuto},
	}
}

// complete fills the values whose default is another value of the file.
func (c *Config) complete() {
	for i := range c.Models {
		m := &c.Models[i]
		if m.Upstream == "" {
			m.Upstream = m.Name
		}
		if m.DefaultMaxTokens == 0 {
			m.DefaultMaxTokens = max(1, min(c.Policy.DefaultMaxTokens, m.ContextLength))
		}
	}
}

// ByteSize is a number of bytes, written as `512`, `64KiB`, `32MiB` or `1GiB`.
type ByteSize int64

// Units of ByteSize.
const (
	KiB ByteSize = 1 << 10
	MiB ByteSize = 1 << 20
	GiB ByteSize = 1 << 30
)

var byteUnits = [...]struct {
	suffix string
	size   ByteSize
}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}, {"", 1}}

// String writes s in the largest unit that divides it.
func (s ByteSize) String() string {
	for _, u := range byteUnits {
		if u.size > 1 && s != 0 && s%u.size == 0 {
			return strconv.FormatInt(int64(s/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// ParseByteSize reads what ByteSize.String writes. Units of 1000 are refused, since they are so often
// meant as units of 1024.
func ParseByteSize(text string) (ByteSize, error) {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 || n > int64(1<<62/u.size) {
			break
		}
		return ByteSize(n) * u.size, nil
	}
	return 0, fmt.Errorf("%q is not a size", text)
}
