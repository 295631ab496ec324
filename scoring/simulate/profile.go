package simulate

import (
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// Profile is a worker's size and speed under a name.
type Profile struct {
	Name, About string
	Engine      engine.Config
	// SharedCores is as in [Config].
	SharedCores float64
}

// Profiles are the known workers, the default one first. The constants of the
// GPUs are derived from data sheets, those of the CPU read off a real engine;
// docs/0010-simulate.md has the derivations.
var Profiles = [...]Profile{
	{
		Name: "l40s-27b", About: "one L40S, 27B parameters in 8 bits",
		Engine: engine.Config{BlockSize: 16, Blocks: 3300, MaxSeqs: 256, BatchTokens: 2048, Timing: engine.DefaultTiming()},
	},
	{
		Name: "h100-8b", About: "one H100 SXM, 8B parameters in 16 bits",
		Engine: engine.Config{
			BlockSize: 64, Blocks: 6500, MaxSeqs: 1024, BatchTokens: 8192,
			Timing: engine.Timing{
				Step: 6 * time.Millisecond, PrefillToken: 36 * time.Microsecond, DecodeSeq: 20 * time.Microsecond,
				Context: 40 * time.Microsecond, Attention: 1300 * time.Microsecond,
			},
		},
	},
	{
		Name: "cpu-pair", About: "vLLM on two cores that all workers share, 102M parameters",
		Engine: engine.Config{
			BlockSize: 32, Blocks: 512, MaxSeqs: 8, BatchTokens: 1024,
			Timing: engine.Timing{
				Step: 35 * time.Millisecond, PrefillToken: 200 * time.Microsecond, DecodeSeq: 2 * time.Millisecond,
				Context: time.Millisecond, Attention: 120 * time.Millisecond,
			},
		},
		SharedCores: 1,
	},
}
