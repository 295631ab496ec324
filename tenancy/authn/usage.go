package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"
)

// usage is when a key was last used, to the minute. It outlives what is loaded of
// the key.
type usage struct {
	last  atomic.Int64 // Unix seconds, 0 for never
	noted int64        // what was kept of it; of the goroutine that keeps it
}

// at notes a use. Within a minute of the last one it changes nothing, so that the
// processors do not pass the value around.
func (u *usage) at(now time.Time) {
	if u == nil {
		return
	}
	if s := now.Unix(); s >= u.last.Load()+60 {
		u.last.Store(s)
	}
}

// use has the use of keys noted, by id as far as that was done before. It needs
// mu, or a Live that nobody else has.
func (l *Live) use(keys map[string]*entry) {
	for id, e := range keys {
		u := l.uses[id]
		if u == nil {
			u = new(usage)
			l.uses[id] = u
		}
		if e.use == nil {
			e.use = u
		}
	}
}

// noteUses keeps when keys were used since it was last called. What could not be
// kept is kept the next time.
func (l *Live) noteUses(ctx context.Context) {
	l.mu.Lock()
	s := l.snap.Load()
	file, stored := make(map[string]time.Time), make(map[string]time.Time)
	for id, u := range l.uses {
		last := u.last.Load()
		if last == u.noted {
			continue
		}
		if _, ok := s.stored[id]; ok {
			stored[id] = time.Unix(last, 0).UTC()
		} else if l.used != "" {
			file[id] = time.Unix(last, 0).UTC()
		}
	}
	used := l.used
	l.mu.Unlock()
	if len(stored) > 0 {
		ctx, cancel := context.WithTimeout(ctx, noteTimeout)
		defer cancel()
		l.noted(stored, l.cfg.Store.Used(ctx, stored))
	}
	if len(file) > 0 {
		l.noted(file, NoteUses(used, file, time.Now()))
	}
}

// noted takes in what came of keeping uses.
func (l *Live) noted(at map[string]time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failLocked(ofUses, fmt.Errorf("cannot note when keys were used: %w", err))
		return
	}
	l.workLocked(ofUses)
	for id, t := range at {
		l.uses[id].noted = t.Unix()
	}
}

// loadUses takes in what was noted of keys before this process. A file that can't
// be read is told when it is written.
func (l *Live) loadUses() {
	if l.cfg.Used == "" {
		return
	}
	before, err := LoadUses(l.cfg.Used)
	if err != nil {
		return
	}
	for id, at := range before.Used {
		if u := l.uses[id]; u != nil {
			u.noted = at.Unix()
			u.last.Store(u.noted)
		}
	}
}

// Uses are when keys were last used, as a file beside the tenants file keeps it.
type Uses struct {
	// Since is when the file was begun: of what was before it knows nothing.
	Since time.Time `json:"since"`
	// Used has the keys that were used since, by id, to the minute.
	Used map[string]time.Time `json:"used"`
}

const maxUsesFile = 64 << 20

// LoadUses reads a file of uses. One that is not there is as if begun never.
func LoadUses(file string) (*Uses, error) {
	text, err := readUpTo(file, maxUsesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return &Uses{}, nil
	}
	u := &Uses{}
	if err == nil {
		err = json.Unmarshal(text, u)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read when keys were used from %s: %w", file, err)
	}
	return u, nil
}

// NoteUses adds to a file of uses, and makes it where there is none. Several
// gateways may share one: the later time of each key stays. A file that can't be
// understood is begun anew.
func NoteUses(file string, at map[string]time.Time, now time.Time) error {
	unlock, err := lockFolder(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer unlock()
	u, err := LoadUses(file)
	if err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		if !errors.As(err, &syntax) && !errors.As(err, &kind) {
			return err
		}
		u = &Uses{}
	}
	if u.Since.IsZero() {
		u.Since = now.UTC().Truncate(time.Second)
	}
	if u.Used == nil {
		u.Used = make(map[string]time.Time, len(at))
	}
	for id, t := range at {
		if t.After(u.Used[id]) {
			u.Used[id] = t
		}
	}
	text, err := json.Marshal(u)
	if err != nil {
		return err
	}
	return writeFile(file, append(text, '\n'), 0o600)
}

// Stats is how the keys are.
type Stats struct {
	// Active keys work; those of them that end within WarnBefore are Expiring.
	// Expired and Revoked ones do not work, nor does a key of a disabled tenant,
	// which is Asleep.
	Active, Expiring, Expired, Revoked, Asleep int
	// Stale is how long ago the database could be asked.
	Stale time.Duration
	// Failing and Failures are, for each of SourceNames, whether it fails now and
	// how often it has.
	Failing  [sources]bool
	Failures [sources]uint64
}

// Failing reports whether one of the sources that decide who is let in can't be
// followed.
func (l *Live) Failing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures[ofTenants].now || l.failures[ofRevoked].now || l.failures[ofStore].now
}

// Stats counts. It looks at every key.
func (l *Live) Stats(now time.Time) Stats {
	st := Stats{Stale: l.stale(now)}
	l.mu.Lock()
	for i, f := range l.failures {
		st.Failing[i], st.Failures[i] = f.now, f.count
	}
	l.mu.Unlock()
	for e := range l.snap.Load().all() {
		switch l.stateOf(e, now) {
		case stateActive:
			st.Active++
		case stateExpiring:
			st.Expiring++
		case stateExpired:
			st.Expired++
		case stateRevoked:
			st.Revoked++
		case stateAsleep:
			st.Asleep++
		}
	}
	return st
}

// keyState is whether a key works.
type keyState int

const (
	stateActive keyState = iota
	stateExpiring
	stateExpired
	stateRevoked
	stateAsleep
)

// all yields every key once.
func (s *snapshot) all() func(yield func(*entry) bool) {
	return func(yield func(*entry) bool) {
		for _, e := range s.stored {
			if !yield(e) {
				return
			}
		}
		for id, e := range s.file.keys {
			if _, both := s.stored[id]; !both && !yield(e) {
				return
			}
		}
	}
}

func (l *Live) stateOf(e *entry, now time.Time) keyState {
	s := l.snap.Load()
	t := s.file.byID[e.tenant]
	switch {
	case s.takenBack(e) != nil:
		return stateRevoked
	case !e.expires.IsZero() && !now.Before(e.expires):
		return stateExpired
	case t == nil || t.Disabled:
		return stateAsleep
	case !e.expires.IsZero() && e.expires.Sub(now) <= l.cfg.WarnBefore:
		return stateExpiring
	}
	return stateActive
}

// warn tells of each key once that ends soon, unless another one replaces it.
func (l *Live) warn(now time.Time) {
	if l.cfg.WarnBefore <= 0 {
		return
	}
	s := l.snap.Load()
	replaced := make(map[string]bool)
	var soon []*entry
	for e := range s.all() {
		if e.rotatedFrom != "" && l.stateOf(e, now) == stateActive {
			replaced[e.rotatedFrom] = true
		}
		if l.stateOf(e, now) == stateExpiring {
			soon = append(soon, e)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.warned, func(_ string, end time.Time) bool { return !now.Before(end) })
	slices.SortFunc(soon, func(a, b *entry) int { return a.expires.Compare(b.expires) })
	for _, e := range soon {
		if replaced[e.id] || l.warned[e.id].Equal(e.expires) {
			continue
		}
		l.warned[e.id] = e.expires
		l.log.Warn("a key ends soon", "key_id", e.id, "tenant", e.tenant, "expires", e.expires.UTC().Format(time.RFC3339))
	}
}
