package simworker

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// Config describes one worker. Start from DefaultConfig.
type Config struct {
	// Name is the worker's own name. It goes into the event topic
	// ("kv@NAME@MODEL") and the system fingerprint, nowhere else.
	Name string
	// Model is the served model name.
	Model string
	// LoRAs are adapter names, served as models of their own.
	LoRAs []string
	// Embeddings is the length of the vectors of a worker whose model makes
	// embeddings: it has /v1/embeddings and none of the generating routes. 0 is a
	// model that generates.
	Embeddings int
	// Version is what /version and system_fingerprint say.
	Version string

	// BlockSize is tokens a cache block; Blocks is their number, one of which
	// the engine keeps for itself, as vLLM does.
	BlockSize, Blocks int
	// MaxModelLen bounds prompt plus generated tokens of a request.
	MaxModelLen int
	// MaxSeqs bounds the requests in one step.
	MaxSeqs int
	// BatchTokens is the token budget of one step (chunked prefill).
	BatchTokens int
	// PriorityScheduling takes requests by their priority, lower ones first, as
	// the engine does with --scheduling-policy priority. Otherwise it is ignored.
	PriorityScheduling bool
	// OutputTokens is the mean length at which a text ends by itself; a
	// request's own length lies between a half and one and a half times it.
	// 0 means that texts end only by max_tokens.
	OutputTokens int
	// Timing says how long a step takes, TimeScale multiplies it: 0.1 runs
	// ten times as fast as the modelled GPU, 0 takes no time at all.
	Timing    engine.Timing
	TimeScale float64
	// Seed feeds the generated noise and the timing jitter.
	Seed uint64

	// HTTPAddr, EventsAddr and ReplayAddr are host:port to listen on. An empty
	// EventsAddr means a worker without KV events; an empty ReplayAddr one
	// without replay.
	HTTPAddr, EventsAddr, ReplayAddr string
	// NoTopic publishes events under the empty topic, which is the engine's
	// default, instead of "kv@NAME@MODEL". Some subscribers take no other.
	NoTopic bool
	// AdvertiseEvents and AdvertiseReplay are the endpoints that
	// /kv_event_sources shows, such as "tcp://*:5557". Empty means the address
	// in use, with "*" for the host.
	AdvertiseEvents, AdvertiseReplay string
	// BufferSteps is how many event batches are kept for replay.
	BufferSteps int
	// HWM is how many batches may wait for one slow subscriber before the
	// publisher drops for it.
	HWM int
	// ArrayEvents encodes events as arrays, as vLLM did up to 0.23, instead of
	// maps. OldReplay frames replays as vLLM did before 0.26. ByteHashes
	// sends block hashes as 32 bytes instead of integers.
	ArrayEvents, OldReplay, ByteHashes bool

	// APIKey, if set, guards every path under /v1.
	APIKey string
	// EnablePromptTokensDetails fills usage.prompt_tokens_details.
	EnablePromptTokensDetails bool
	// EnableScaleOut opens the render routes, which answer the token ids of a
	// request. Without it they answer 403.
	EnableScaleOut bool
	// ToolCalls makes the model call a tool whenever it may choose one and the
	// conversation does not end with what one returned, as an engine with a tool
	// parser does. Without it a request that leaves the choice to the model is
	// refused. A tool that the client insists on is called in any case.
	ToolCalls bool
	// NoMessages takes away /v1/messages and /v1/messages/count_tokens, which
	// older engines do not have.
	NoMessages bool
	// FaultAPI opens POST /sim/fault.
	FaultAPI bool
	// KeepRequests is how many received requests Requests remembers.
	KeepRequests int
	// Account, if set, is called once for each request that the engine took,
	// before the worker counts it as ended (Stats.Open). It must be safe for
	// concurrent use.
	Account func(Account)

	// Log receives what the worker has to say. nil discards it. Bodies and
	// prompts are never logged.
	Log *slog.Logger
}

// DefaultConfig returns a worker shaped like one GPU of 48 GB that serves a
// 27B model in 8 bits, in real time, on free loopback ports. Where the figures
// come from is in docs/0006-simulated-worker.md.
func DefaultConfig() Config {
	return Config{
		Name:         "sim",
		Model:        "sim",
		Version:      "0.32.0",
		BlockSize:    16,
		Blocks:       3300,
		MaxModelLen:  32768,
		MaxSeqs:      256,
		BatchTokens:  2048,
		OutputTokens: 256,
		Timing:       engine.DefaultTiming(),
		TimeScale:    1,
		Seed:         1,
		HTTPAddr:     "127.0.0.1:0",
		EventsAddr:   "127.0.0.1:0",
		ReplayAddr:   "127.0.0.1:0",
		BufferSteps:  10_000,
		HWM:          100_000,
		KeepRequests: 64,
	}
}

// Validate reports the first thing wrong with c, naming the field, its value
// and what would be accepted.
func (c *Config) Validate() error {
	positive := []struct {
		name string
		v    int
	}{
		{"BlockSize", c.BlockSize}, {"MaxModelLen", c.MaxModelLen}, {"MaxSeqs", c.MaxSeqs},
		{"BatchTokens", c.BatchTokens}, {"BufferSteps", c.BufferSteps}, {"HWM", c.HWM},
	}
	for _, p := range positive {
		if p.v < 1 {
			return fmt.Errorf("simworker: %s is %d; it must be at least 1", p.name, p.v)
		}
	}
	switch {
	case c.Model == "":
		return errors.New("simworker: Model is empty; give the name that clients will ask for")
	case c.Blocks < 2:
		return fmt.Errorf("simworker: Blocks is %d; at least 2 are needed, as the engine keeps one for itself", c.Blocks)
	case (c.Blocks-1)*c.BlockSize < c.MaxModelLen:
		return fmt.Errorf("simworker: %d blocks of %d tokens cannot hold one request of MaxModelLen %d; raise Blocks or lower MaxModelLen",
			c.Blocks-1, c.BlockSize, c.MaxModelLen)
	case c.OutputTokens < 0 || c.KeepRequests < 0 || c.Embeddings < 0:
		return errors.New("simworker: OutputTokens, KeepRequests and Embeddings must not be negative")
	case c.TimeScale < 0 || math.IsNaN(c.TimeScale) || math.IsInf(c.TimeScale, 0):
		return fmt.Errorf("simworker: TimeScale is %v; it must be a finite number, 0 or more", c.TimeScale)
	case c.ReplayAddr != "" && c.EventsAddr == "":
		return errors.New("simworker: ReplayAddr is set without EventsAddr; replay needs events")
	}
	for _, a := range []struct{ name, v string }{
		{"HTTPAddr", c.HTTPAddr}, {"EventsAddr", c.EventsAddr}, {"ReplayAddr", c.ReplayAddr},
	} {
		if a.v == "" && a.name != "HTTPAddr" {
			continue
		}
		if _, _, err := net.SplitHostPort(a.v); err != nil {
			return fmt.Errorf("simworker: %s is not host:port: %w", a.name, err)
		}
	}
	return c.Timing.Validate()
}
