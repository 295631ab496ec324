package qos

import (
	"strings"
	"testing"
	"time"
)

// TestValidate: each number that makes no sense is named, with what it may be.
func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(c *Config)
	}{
		{"defaults", "", func(*Config) {}},
		{"no class", "there is no class", func(c *Config) { c.Classes = nil }},
		{"too many", "there are 17 classes, at most 16", func(c *Config) { c.Classes = make([]Class, 17) }},
		{"entries", "maxRequests is 0", func(c *Config) { c.MaxEntries = 0 }},
		{"bytes", "maxBytes is 0", func(c *Config) { c.MaxBytes = 0 }},
		{"no tenant share", "maxTenantShare is 0", func(c *Config) { c.MaxTenantShare = 0 }},
		{"large tenant share", "maxTenantShare is 1.1", func(c *Config) { c.MaxTenantShare = 1.1 }},
		{"tries", "tries is 1", func(c *Config) { c.Tries = 1 }},
		{"slack", "slack is -1", func(c *Config) { c.Slack = -1 }},
		{"memory", "memory is 0s", func(c *Config) { c.Memory = 0 }},
		{"no name", `class "": it has no name`, func(c *Config) { c.Classes[1].Name = "" }},
		{"twice", `class "urgent" is there twice`, func(c *Config) { c.Classes[1].Name = "urgent" }},
		{"target", `class "plain": target is 0s`, func(c *Config) { c.Classes[1].Target = 0 }},
		{"max wait", `class "plain": maxWait 1ns is less than target`, func(c *Config) { c.Classes[1].MaxWait = 1 }},
		{"bound", `class "plain": bound is -1ns`, func(c *Config) { c.Classes[1].Bound = -1 }},
		{"share", `class "plain": share is -0.1`, func(c *Config) { c.Classes[1].Share = -0.1 }},
		{"large share", `class "plain": share is 0.95`, func(c *Config) { c.Classes[1].Share = 0.95 }},
		{"max queue", `class "plain": maxQueue is -1`, func(c *Config) { c.Classes[1].MaxQueue = -1 }},
		{"bounds' order", `class "batch": bound 1m0s is larger than`, func(c *Config) { c.Classes[2].Bound = time.Minute }},
		{"all shares", "the shares of all classes add up to 1:", func(c *Config) {
			c.Classes[0].Share, c.Classes[1].Share, c.Classes[2].Share = 0.4, 0.3, 0.3
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig("urgent", "plain", "batch")
			c.change(&cfg)
			err := cfg.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("the error is %v, want %q", err, c.want)
			}
			q := newQueue(t, nil, "a")
			before := q.Settings(1)
			if failed := q.Reconfigure(cfg, []string{"a", "b"}); (failed != nil) != (err != nil) {
				t.Errorf("Reconfigure: %v", failed)
			} else if _, there := q.Pool("b"); failed != nil && (there || q.Settings(1) != before) {
				t.Error("a configuration that was refused has changed the queue")
			}
		})
	}
}

// TestReconfigure changes a queue while entries wait: they stay under the numbers that
// they came with, and what is new holds for those that come.
func TestReconfigure(t *testing.T) {
	q := newQueue(t, nil, "a")
	p := &slots{free: map[PoolID]int{}}
	var out []Outcome
	admit := func(name string, class ClassID, pool PoolID) {
		t.Helper()
		out = q.Admit(start, entry(name, class, name, 100, pool), p, out)
	}
	admit("urgent", 0, 0)
	admit("plain", 1, 0)
	admit("batch", 2, 0)
	cfg := DefaultConfig("new", "batch", "urgent") // plain is gone, batch is before urgent
	for i := range cfg.Classes {
		cfg.Classes[i].Share = 0
	}
	cfg.MaxEntries = 4 // three wait
	if err := q.Reconfigure(cfg, []string{"b", "a"}); err != nil {
		t.Fatal(err)
	}
	for want, name := range []string{"urgent", "plain", "batch", "new"} {
		if id, ok := q.Class(name); !ok || id != ClassID(want) {
			t.Errorf("class %s is %d, %v", name, id, ok)
		}
	}
	if id, ok := q.Pool("b"); !ok || id != 1 {
		t.Errorf("pool b is %d, %v", id, ok)
	}
	admit("new", 3, 0)
	admit("one too many", 2, 1)
	cfg.MaxEntries = 2 // less than wait
	if err := q.Reconfigure(cfg, []string{"b", "a"}); err != nil {
		t.Fatal(err)
	}
	admit("also", 3, 1)
	for range 4 {
		p.free[0] = 1
		q.Dirty(0)
		out = q.Pump(start, p, out)
	}
	want := "one too many full, also full, new, batch, urgent, plain"
	if got := strings.Join(names(out), ", "); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var stats Stats
	if q.Stats(start, &stats); !stats.Classes[1].Gone || stats.Classes[2].Gone || stats.Waiting != 0 {
		t.Errorf("%+v", stats.Classes)
	}
	if err := q.Check(); err != nil {
		t.Error(err)
	}
}
