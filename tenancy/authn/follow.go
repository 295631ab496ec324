package authn

import (
	"context"
	"errors"
	"maps"
	"time"
)

// Store is a database of keys, as Live follows it.
type Store interface {
	// Changes returns the keys that were added or changed after a version, and the
	// version that they bring one to. It is asked several times a second and has to
	// be cheap when nothing has changed, and to fail soon when the database does not
	// answer. The zero Version asks for all keys, and so does one that the database
	// does not know.
	Changes(ctx context.Context, since Version) (Changes, error)
	// Used notes when keys were last used, by id. A later time that it has stays.
	Used(ctx context.Context, at map[string]time.Time) error
}

// Version is a state of a Store. Epoch is another one for every database that was
// ever made.
type Version struct {
	Epoch string
	Seq   int64
}

// Changes are what a Store answers.
type Changes struct {
	Keys    []KeyInfo
	Version Version
	// All says that Keys are all there are.
	All bool
}

const (
	// askEvery is the time between two questions to a Store, askTimeout how long one
	// may take in which there are many keys to read.
	askEvery   = 200 * time.Millisecond
	askTimeout = 30 * time.Second
	// askAllEvery is the time after which a Store is read whole again: a database
	// that was put back from a copy may have gone on to a version that another
	// state of it had.
	askAllEvery = 5 * time.Minute
	// askAllTries bounds how often it is read whole when its keys change meanwhile.
	askAllTries = 3
)

// ask takes in what has changed in the Store.
func (l *Live) ask(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	l.mu.Lock()
	since := l.version
	l.mu.Unlock()
	got, err := l.cfg.Store.Changes(ctx, since)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			l.failLocked(ofStore, err)
		}
		return err
	}
	l.workLocked(ofStore)
	l.asked.Store(&now)
	if l.version == since { // else askAll has come between, with what may be newer
		l.takeLocked(&got)
	}
	return nil
}

// askAll reads the Store whole. It does so beside ask, since that may take longer
// than a revocation may wait; so what it has read counts only if ask has found
// nothing new meanwhile. That it fails is for ask to tell.
func (l *Live) askAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askAllEvery/2)
	defer cancel()
	for range askAllTries {
		l.mu.Lock()
		before := l.version
		l.mu.Unlock()
		got, err := l.cfg.Store.Changes(ctx, Version{})
		if err != nil {
			return
		}
		l.mu.Lock()
		same := l.version == before
		if same {
			l.takeLocked(&got)
		}
		l.mu.Unlock()
		if same {
			return
		}
	}
}

// takeLocked makes changes of the Store those in force.
func (l *Live) takeLocked(got *Changes) {
	l.version = got.Version
	if len(got.Keys) == 0 && !got.All {
		return
	}
	s := *l.snap.Load()
	stored := make(map[string]*entry, len(s.stored)+len(got.Keys))
	if !got.All {
		maps.Copy(stored, s.stored)
	}
	for i := range got.Keys {
		k := &got.Keys[i]
		e, err := newEntry(k.Tenant, &k.Record)
		if err != nil {
			l.log.Error("a key in the database can't be used", "key_id", k.ID, "error", err)
			delete(stored, k.ID)
			continue
		}
		stored[k.ID] = e
	}
	l.use(stored)
	s.stored = stored
	s.number++
	l.snap.Store(&s)
}
