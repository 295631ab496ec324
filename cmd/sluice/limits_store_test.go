package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit/redis"
	"github.com/sluicegate/sluice/ratelimit/redis/redistest"
)

// ownRedis is a Redis of this test alone, with a password. Without one the test is skipped, or fails, as with
// postgresServer.
func ownRedis(t *testing.T, password string) *redistest.Server {
	t.Helper()
	s, err := redistest.New("--requirepass", password)
	if errors.Is(err, redistest.ErrNotInstalled) && !redistest.Required() {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// sharedLimits has a gateway share its limits through a Redis, whose absence its policies refuse.
func sharedLimits(t *testing.T, s *redistest.Server, password string) func(*Config) {
	return func(cfg *Config) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := &cfg.Store.Redis
		c.Addresses, c.PasswordFile, c.Timeout = []string{s.Socket()}, file, 5*time.Second
		policy := filepath.Join(cfg.Policy.Dir, "qos-tiers.yaml")
		text, err := os.ReadFile(policy)
		if err != nil {
			t.Fatal(err)
		}
		text = []byte(strings.ReplaceAll(string(text), "onStoreError: Local", "onStoreError: Deny"))
		if err := os.WriteFile(policy, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSharedLimits has two gateways count together, and live through the end of their store.
func TestSharedLimits(t *testing.T) {
	const password = "MARKED-password-of-the-store"
	server := ownRedis(t, password)
	d, a := startStack(t, sharedLimits(t, server, password))
	soon(t, "the store", stackPatience, func() bool { return a.shared.Stats().State == redis.StateUp })
	tour := newTour(d, a, io.Discard)
	ask := func() int {
		t.Helper()
		got, err := tour.ask(context.Background(), "initech", user(words(3, 30))) // limits too small to be leased
		if err != nil {
			t.Fatal(err)
		}
		return got.status
	}
	details := func() string {
		t.Helper()
		resp, err := http.Get(a.baseURL() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return string(text)
	}
	for range 3 {
		if got := ask(); got != http.StatusOK {
			t.Fatalf("status %d", got)
		}
	}
	var page limitsPage
	resp := askAdmin(t, a, http.MethodGet, "/debug/limits")
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || page.Store != "redis" || page.Redis.State != "up" || page.Redis.Replicas != 1 || page.Reserved < 3 {
		t.Errorf("/debug/limits: %v %+v %+v", err, page, page.Redis)
	}
	if text := metricsText(t, a); !strings.Contains(text, `sluice_ratelimit_store_state{state="up"} 1`) || !strings.Contains(text, `sluice_degraded{part="limits",reason="store_down"} 0`) {
		t.Errorf("metrics do not show that the store is up:\n%s", text)
	}

	server.Kill()
	soon(t, "the loss of the store", stackPatience, func() bool { return a.shared.Stats().State == redis.StateDown })
	if got := ask(); got != http.StatusServiceUnavailable {
		t.Errorf("status %d without the store, want 503", got)
	}
	if text := details(); !strings.Contains(text, "limit_store_down") {
		t.Errorf("/readyz: %s", text)
	}
	if text := metricsText(t, a); !strings.Contains(text, `sluice_degraded{part="limits",reason="store_down"} 1`) {
		t.Error("metrics do not show that the store is down")
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	soon(t, "the store to be found again", stackPatience, func() bool { return ask() == http.StatusOK })
	if text := details(); strings.Contains(text, "limit_store") {
		t.Errorf("/readyz: %s", text)
	}
}
