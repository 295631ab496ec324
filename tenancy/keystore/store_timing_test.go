package keystore

import (
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// filled is a database of n keys.
func filled(b *testing.B, n int) *Store {
	b.Helper()
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "keys.db"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	err = s.change(b.Context(), func(tx *sql.Tx) error {
		for range n {
			k, err := authn.NewKey()
			if err != nil {
				return err
			}
			k.Groups, k.Models = []string{"devs"}, []string{"qwen-*"}
			seq, err := s.next(b.Context(), tx)
			if err == nil {
				err = s.insert(b.Context(), tx, seq, "acme", &k.Record)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// What a gateway asks five times a second.
func BenchmarkNothingNew(b *testing.B) {
	s := filled(b, 10_000)
	c, err := s.Changes(b.Context(), authn.Version{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if c, err = s.Changes(b.Context(), c.Version); err != nil || len(c.Keys) > 0 {
			b.Fatal(c, err)
		}
	}
}

// What it asks at the start, and every five minutes.
func BenchmarkAllKeys(b *testing.B) {
	s := filled(b, 10_000)
	for b.Loop() {
		if c, err := s.Changes(b.Context(), authn.Version{}); err != nil || len(c.Keys) != 10_000 {
			b.Fatal(err)
		}
	}
}
