package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// startFleet starts cold workers for a workload.
func startFleet(ctx context.Context, e *env, w *workload) (*rig.Fleet, error) {
	return rig.StartFleet(ctx, e.dir, e.sluice,
		"--workers", strconv.Itoa(e.workers), "--model", modelName, "--tokenizer", e.tokenizer,
		"--time-scale", fmt.Sprint(e.timeScale), "--output-tokens", "0", "--jitter", "0.05",
		"--slow", fmt.Sprintf("0=%v", w.slow),
		"--block-size", strconv.Itoa(blockSize), "--blocks", strconv.Itoa(w.blocks), "--max-model-len", strconv.Itoa(w.maxModelLen),
		// What one of the other routers needs to see tokens and events.
		"--enable-scale-out", "--no-topic")
}
