package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/policies"
)

// BenchmarkGeneration builds a generation of the starter policies, as each reload does, and beside it the
// fingerprint of its files, as each look does.
func BenchmarkGeneration(b *testing.B) {
	dir := b.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
		b.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "starter"), policies.Starter()); err != nil {
		b.Fatal(err)
	}
	cfg, _, err := LoadConfig(filepath.Join(dir, "sluice.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	cfg.Policy.Dir = filepath.Join(dir, "starter")
	for _, name := range []string{"general", "restricted"} {
		p := cfg.Pools[0]
		p.Name = name
		cfg.Pools = append(cfg.Pools, p)
	}
	cfg.Pools = cfg.Pools[1:]
	base, err := newLasting(cfg, time.Now(), nil)
	if err != nil {
		b.Fatal(err)
	}
	first, err := base.generation(cfg, nil, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			if _, err := base.generation(cfg, first, time.Now()); err != nil {
				b.Fatal(err)
			}
		}
		names := map[string]bool{}
		for _, r := range first.docs.policies.Rules() {
			name, _, _ := strings.Cut(r.Rule, "/")
			names[name] = true
		}
		b.ReportMetric(float64(len(names)), "policies")
		b.ReportMetric(float64(len(first.docs.policies.Estimates())), "expressions")
	})
	b.Run("look", func(b *testing.B) {
		s := sourcesOf("", cfg)
		for b.Loop() {
			_ = s.fingerprint()
		}
	})
}
