package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/tenancy/secretstest"
)

// addKeys has a demo's credentials looked for.
func addKeys(s *secretstest.Secrets, d *demo) {
	for tenant, key := range d.keys {
		s.Add("the key of "+tenant, strings.SplitN(key, "_", 3)[2])
	}
}

// noSecretTold looks for credentials, after any test of a whole gateway, in what it
// shows to operators and in what it has written. Its log is looked at besides.
func noSecretTold(t testing.TB, s *secretstest.Secrets, a *app) {
	t.Helper()
	token := adminToken(t, a)
	for _, file := range secretFiles(a.cfg) {
		text, err := os.ReadFile(file)
		if err == nil && len(strings.TrimSpace(string(text))) >= 16 {
			s.Add("the content of "+filepath.Base(file), strings.TrimSpace(string(text)))
		}
	}
	for _, path := range []string{"/metrics", "/debug/workers", "/debug/predictions", "/debug/policies"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
		r.Host = "localhost"
		r.Header.Set("Authorization", "Bearer "+token)
		a.pages.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		for _, found := range s.Find(w.Body.Bytes()) {
			t.Errorf("%s: %s", path, found)
		}
	}
	// Closing a file of the database itself would give up the locks that this
	// process has on it; what was written of late is in its log.
	written := []string{a.cfg.Ledger.Path + "-wal", a.cfg.Ledger.Path + "-refused"}
	for _, kind := range []string{"-spool-*", "-intents-*"} {
		files, err := filepath.Glob(a.cfg.Ledger.Path + kind)
		if err != nil {
			t.Error(err)
		}
		written = append(written, files...)
	}
	if a.cfg.DecisionLog.Enabled() {
		written = append(written, a.cfg.DecisionLog.Path)
	}
	for _, file := range written {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // what was in it has gone elsewhere meanwhile
		}
		for _, found := range s.Find(text) {
			t.Errorf("%s: %s", filepath.Base(file), found)
		}
	}
}

// secretFiles are the files of a configuration that hold nothing but a secret.
func secretFiles(cfg *Config) []string {
	files := []string{cfg.adminTokenFile(), cfg.CacheIsolation.KeyFile, cfg.DecisionLog.HashKeyFile, cfg.Store.Redis.PasswordFile}
	for i := range cfg.Pools {
		files = append(files, cfg.Pools[i].APIKeyFile)
	}
	for i := range cfg.Labels.External {
		files = append(files, cfg.Labels.External[i].APIKeyFile)
	}
	return files
}
