package keystore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// Store is a database of keys. It implements authn.Store, and is safe for
// concurrent use.
type Store struct {
	db      *sql.DB
	dialect *dialect
	where   string
}

// Key is a key as the database has it.
type Key struct {
	authn.KeyInfo
	// Revoked is when the key was revoked, By whom and why; zero for one that was
	// not.
	Revoked    time.Time
	By, Reason string
	// Used is when a gateway last let the key in, to the minute; zero for never.
	Used time.Time
}

// ErrRevoked says that a key was revoked before.
var ErrRevoked = errors.New("the key is revoked")

const columns = "id, sha256, tenant, name, grants, created_ns, expires_ns, revoked_ns, revoked_by, reason, rotated_from, used_ns"

// Changes implements authn.Store.
func (s *Store) Changes(ctx context.Context, since authn.Version) (authn.Changes, error) {
	now, err := s.version(ctx)
	if err != nil {
		return authn.Changes{}, err
	}
	if now == since {
		return authn.Changes{Version: now}, nil
	}
	// What is committed between the two questions is in this answer or in the next
	// one, or in both.
	c := authn.Changes{Version: now, All: now.Epoch != since.Epoch || now.Seq < since.Seq}
	after := since.Seq
	if c.All {
		after = 0
	}
	keys, err := s.query(ctx, "SELECT "+columns+" FROM sluice_keys WHERE seq > ?", after)
	for i := range keys {
		c.Keys = append(c.Keys, keys[i].KeyInfo)
	}
	return c, err
}

// versionTimeout is for one row by its key: who does not answer by then, does not
// answer.
const versionTimeout = 2 * time.Second

func (s *Store) version(ctx context.Context) (v authn.Version, err error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	err = s.db.QueryRowContext(ctx, "SELECT epoch, seq FROM sluice_key_state").Scan(&v.Epoch, &v.Seq)
	return v, err
}

// Keys lists all keys, by tenant and in the order in which they were made, and since
// when their use is noted.
func (s *Store) Keys(ctx context.Context) (keys []Key, since time.Time, err error) {
	var ns int64
	if err = s.db.QueryRowContext(ctx, "SELECT since_ns FROM sluice_key_state").Scan(&ns); err == nil {
		keys, err = s.query(ctx, "SELECT "+columns+" FROM sluice_keys ORDER BY tenant, created_ns, id")
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("cannot list the keys in %s: %w", s.where, err)
	}
	return keys, instant(ns), nil
}

func (s *Store) query(ctx context.Context, text string, args ...any) ([]Key, error) {
	rows, err := s.db.QueryContext(ctx, s.sql(text), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var keys []Key
	for rows.Next() {
		k, err := scanKey(rows.Scan)
		if err != nil {
			return nil, err
		}
		keys = append(keys, *k)
	}
	return keys, rows.Err()
}

func scanKey(scan func(...any) error) (*Key, error) {
	var k Key
	var grants string
	var created, expires, revoked, used int64
	err := scan(&k.ID, &k.SHA256, &k.Tenant, &k.Name, &grants, &created, &expires, &revoked, &k.By, &k.Reason, &k.RotatedFrom, &used)
	if err != nil {
		return nil, err
	}
	k.Created, k.Expires, k.Revoked, k.Used = instant(created), instant(expires), instant(revoked), instant(used)
	k.Disabled = revoked != 0
	if err := readGrants(grants, &k.Record); err != nil {
		// Not an error of the whole: the others must go on to work. A key whose grants
		// are not known is refused, and listed as such.
		k.Disabled, k.Reason = true, "its grants in the database can't be read"
	}
	return &k, nil
}

// instant is a time in the database: 0 is none.
func instant(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// next takes the next number of a change, and with it the lock under which changes
// are made one after the other.
func (s *Store) next(ctx context.Context, tx *sql.Tx) (seq int64, err error) {
	err = tx.QueryRowContext(ctx, "UPDATE sluice_key_state SET seq = seq + 1 RETURNING seq").Scan(&seq)
	return seq, err
}

// Create adds a key to a tenant. Whether there is such a tenant is the caller's to
// know.
func (s *Store) Create(ctx context.Context, tenant string, rec *authn.Record) error {
	err := s.change(ctx, func(tx *sql.Tx) error {
		seq, err := s.next(ctx, tx)
		if err != nil {
			return err
		}
		return s.insert(ctx, tx, seq, tenant, rec)
	})
	if err != nil {
		return fmt.Errorf("cannot add a key in %s: %w", s.where, err)
	}
	return nil
}

func (s *Store) insert(ctx context.Context, tx *sql.Tx, seq int64, tenant string, rec *authn.Record) error {
	_, err := tx.ExecContext(ctx, s.sql(`INSERT INTO sluice_keys
		(id, sha256, tenant, name, grants, created_ns, expires_ns, revoked_ns, revoked_by, reason, rotated_from, seq, used_ns)
		VALUES (?, ?, ?, ?, ?, ?, ?, 0, '', '', ?, ?, 0)`),
		rec.ID, rec.SHA256, tenant, rec.Name, grantsOf(rec), nanos(rec.Created), nanos(rec.Expires), rec.RotatedFrom, seq)
	return err
}

// Import adds keys that are not there yet, all or none, and returns their ids. One
// whose id is there stays as it is.
func (s *Store) Import(ctx context.Context, keys []authn.KeyInfo) (added []string, err error) {
	err = s.change(ctx, func(tx *sql.Tx) error {
		for i := range keys {
			k := &keys[i]
			switch _, err := s.key(ctx, tx, k.ID); {
			case err == nil:
				continue
			case !errors.Is(err, authn.ErrNoKey):
				return err
			}
			seq, err := s.next(ctx, tx)
			if err == nil {
				err = s.insert(ctx, tx, seq, k.Tenant, &k.Record)
			}
			if err != nil {
				return fmt.Errorf("key %s: %w", k.ID, err)
			}
			added = append(added, k.ID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot import keys to %s: %w", s.where, err)
	}
	return added, nil
}

// Revoke ends a key for good, and returns it as it is then. The error wraps
// authn.ErrNoKey if there is no such key, and ErrRevoked if it was revoked before,
// with the key as it is.
func (s *Store) Revoke(ctx context.Context, id, by, reason string, now time.Time) (k *Key, err error) {
	err = s.change(ctx, func(tx *sql.Tx) error {
		seq, err := s.next(ctx, tx)
		if err != nil {
			return err
		}
		if k, err = s.key(ctx, tx, id); err != nil {
			return err
		}
		if !k.Revoked.IsZero() {
			return ErrRevoked
		}
		k.Revoked, k.By, k.Reason, k.Disabled = now.UTC().Round(0), by, reason, true
		_, err = tx.ExecContext(ctx, s.sql("UPDATE sluice_keys SET revoked_ns = ?, revoked_by = ?, reason = ?, seq = ? WHERE id = ?"),
			nanos(now), by, reason, seq, id)
		return err
	})
	if err != nil {
		return k, fmt.Errorf("cannot revoke key %s in %s: %w", id, s.where, err)
	}
	return k, nil
}

// Rotate ends a key at an instant, unless it ends before, and adds the one that
// replaces it: next is given what there is of the old key. It returns the old key
// as it was. The error wraps authn.ErrNoKey if there is no such key.
func (s *Store) Rotate(ctx context.Context, id string, end time.Time, next func(old *authn.KeyInfo) (*authn.Record, error)) (old *Key, err error) {
	err = s.change(ctx, func(tx *sql.Tx) error {
		seq, err := s.next(ctx, tx)
		if err != nil {
			return err
		}
		if old, err = s.key(ctx, tx, id); err != nil {
			return err
		}
		rec, err := next(&old.KeyInfo)
		if err != nil {
			return err
		}
		if old.Expires.IsZero() || end.Before(old.Expires) {
			old.Expires = end.UTC().Round(0)
		}
		if _, err := tx.ExecContext(ctx, s.sql("UPDATE sluice_keys SET expires_ns = ?, seq = ? WHERE id = ?"), nanos(old.Expires), seq, id); err != nil {
			return err
		}
		return s.insert(ctx, tx, seq, old.Tenant, rec)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot rotate key %s in %s: %w", id, s.where, err)
	}
	return old, nil
}

func (s *Store) key(ctx context.Context, tx *sql.Tx, id string) (*Key, error) {
	k, err := scanKey(tx.QueryRowContext(ctx, s.sql("SELECT "+columns+" FROM sluice_keys WHERE id = ?"), id).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, authn.ErrNoKey
	}
	return k, err
}

// Used implements authn.Store.
func (s *Store) Used(ctx context.Context, at map[string]time.Time) error {
	ids := slices.Sorted(maps.Keys(at))
	times := make([]int64, len(ids))
	for i, id := range ids {
		times[i] = nanos(at[id])
	}
	return s.change(ctx, func(tx *sql.Tx) error { return s.dialect.noteAll(ctx, tx, ids, times) })
}
