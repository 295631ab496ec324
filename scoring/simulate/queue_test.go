package simulate

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/gateway/qos"
)

// unlimited is one class that is given to workers whatever waits there.
func unlimited() *qos.Config {
	cfg := qos.DefaultConfig("all")
	c := &cfg.Classes[0]
	c.Target, c.MaxWait, c.Bound = time.Hour, 10000*time.Hour, qos.Unbounded
	return &cfg
}

// TestUnlimitedQueueChangesNothing: with one class and no bound every request fares
// to the nanosecond as it does without a queue.
func TestUnlimitedQueueChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		plan := drawPlan(t, cfg.Seed)
		s := rapid.SampledFrom(Strategies()[:5]).Draw(t, "strategy")
		without, err := Run(cfg, plan, s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.QoS = unlimited()
		with, err := Run(cfg, plan, s)
		if err != nil {
			t.Fatal(err)
		}
		for i := range with.Samples {
			with.Samples[i].Work = 0
		}
		with.Met, with.Goodput, with.Classes, with.Tenants = without.Met, without.Goodput, nil, nil
		if !reflect.DeepEqual(with, without) {
			t.Fatalf("the queue changes what becomes of requests:\n%+v\n%+v", with, without)
		}
	})
}
