package authn

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy/authn/authntest"
)

// Each credential of the corpus is known or refused, and for the reason that the
// corpus says.
func TestCorpus(t *testing.T) {
	corpus, err := authntest.Load("testdata/keys")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Load("tenants.yaml", []byte(corpus.Tenants))
	if err != nil {
		t.Fatal(err)
	}
	list := t.TempDir() + "/revoked"
	if err := os.WriteFile(list, []byte(corpus.Revoked), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := NewLive(t.Context(), LiveConfig{Files: Files{Revoked: list}}, d)
	if err != nil {
		t.Fatal(err)
	}
	v, judged := l.View(d), 0
	for _, c := range corpus.Cases {
		if c.Identify == "" {
			continue
		}
		judged++
		now := c.At
		if now.IsZero() {
			now = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
		}
		_, credential, _ := strings.Cut(c.Send[0], "Bearer ")
		p, err := v.IdentifyKey([]byte(credential), now)
		got := reasonOf(err)
		if err == nil {
			got = "ok"
		}
		if got != c.Identify || (p == nil) != (err != nil) {
			t.Errorf("%s: %s, want %s", c.Name, got, c.Identify)
		}
		if err != nil && regexp.MustCompile(`A{8}|B{8}|C{8}`).MatchString(err.Error()) {
			t.Errorf("%s: the error shows the secret: %v", c.Name, err)
		}
	}
	if judged < 40 {
		t.Errorf("%d cases were judged", judged)
	}
}
