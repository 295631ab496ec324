package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
	"github.com/sluicegate/sluice/scoring/simworker"
)

// TestBrokenEventConnectionIsReported: the end of a worker's event connection is
// often the first sign that it is gone, so whoever checks its health is told.
func TestBrokenEventConnectionIsReported(t *testing.T) {
	cfg := simworker.DefaultConfig()
	cfg.Model, cfg.EventsAddr, cfg.ReplayAddr = demoModel, "127.0.0.1:0", "127.0.0.1:0"
	worker, err := simworker.Start(cfg, simworker.NewByteTokenizer())
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Kill()
	fleet := scoring.NewFleet(scoring.DefaultConfig())
	id, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: "w", Pool: "p", Address: worker.URL(), Models: []string{demoModel}})
	if err != nil {
		t.Fatal(err)
	}
	doubted := make(chan scoring.WorkerID, 16)
	subs := newSubscriptions(fleet, slog.New(slog.DiscardHandler))
	subs.doubt = func(id scoring.WorkerID) { doubted <- id }
	info := scoring.WorkerInfo{ID: id, Name: "w", Pool: "p"}
	subs.set(info, []discovery.EventSource{{Endpoint: worker.EventsEndpoint(), Replay: worker.ReplayEndpoint()}})
	defer subs.set(info, nil)
	soon(t, "the view to join", stackPatience, func() bool { return subs.joined() == 1 })
	select {
	case <-doubted:
		t.Fatal("a connection that stands was reported")
	default:
	}
	worker.Kill()
	select {
	case got := <-doubted:
		if got != id {
			t.Errorf("worker %d was reported, want %d", got, id)
		}
	case <-time.After(stackPatience):
		t.Fatal("the broken connection was not reported")
	}
}
