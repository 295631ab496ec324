package policy

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// TestConcurrentDecisions: a set is shared by all requests, and every one gets
// the decision it would get alone.
func TestConcurrentDecisions(t *testing.T) {
	examples := os.DirFS("policytest/testdata/examples")
	suites, err := LoadTests(examples, "03-policy-tests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg := suites[0].Config
	set, err := LoadFiles(cfg, examples, suites[0].Files)
	if err != nil {
		t.Fatal(err)
	}
	set.times = timeLimits{time.Hour, time.Hour} // a busy machine is no error here
	input := func(i int) *Input {
		in := testInput()
		in.Request.Model = cfg.Pools[i%3].Models[0]
		in.Tenant.Tier = []string{"gold", "silver", "platinum"}[i%3]
		in.Tenant.Labels = map[string]string{"env": []string{"prod", "staging", "dev"}[i/3%3]}
		in.Principal.ID = fmt.Sprint("p", i)
		return in
	}
	const requests = 18
	want := make([]string, requests)
	for i := range want {
		want[i] = outcomeOf(set, input(i))
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				n := (i + g) % requests
				if got := outcomeOf(set, input(n)); got != want[n] {
					t.Errorf("request %d: %s", n, got)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestConcurrentLoads: loads share nothing but the base environment.
func TestConcurrentLoads(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			cfg := testConfig()
			cfg.Claims = map[string]string{fmt.Sprint("c", i): "int"}
			text := policyText("p", fmt.Sprintf("\n  variables: [{ name: x, expression: \"principal.claims.c%d.orValue(1)\" }]\n  validations: [{ name: v, expression: \"variables.x == 1\" }]", i), "Deny")
			s, err := load(cfg, text)
			if err != nil {
				t.Error(err)
				return
			}
			if d := s.Decide(context.Background(), testInput()); !d.Allow {
				t.Errorf("%+v", d.Errors)
			}
		})
	}
	wg.Wait()
}
