package authn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// noteEvery is the time between two notes of when keys were used, and between
	// two looks for those that end soon.
	noteEvery = time.Minute
	// noteTimeout is how long that may take.
	noteTimeout = 5 * time.Second
)

// Files are those that a Live follows and keeps.
type Files struct {
	// Tenants is the tenants file.
	Tenants string
	// Revoked is the list of revoked credentials; it need not exist.
	Revoked string
	// Used is the file that keeps when the keys of the tenants file were last used;
	// empty for none.
	Used string
}

// LiveConfig is what a Live follows.
type LiveConfig struct {
	Files
	// Watch has the tenants file looked at; without it only Adopt tells what it says.
	// The list of revoked credentials is looked at in any case.
	Watch bool
	// Store holds further keys; nil for none. Where it has a key with the id of one
	// in the file, its own counts, unless the file disables that.
	Store Store
	// MaxStale is how long keys of the Store are believed that it could not be asked
	// about; 0 is without end.
	MaxStale time.Duration
	// WarnBefore is how long before its end a key is warned of; 0 is never.
	WarnBefore time.Duration
	// Log receives changes, failures and warnings; nil discards them.
	Log *slog.Logger
}

// Live is the keys in force. It follows their sources by itself, each on its own,
// and no fault in anything else that the gateway loads keeps a key from being
// revoked: what a source says holds half a second after it says so. A source that
// can't be read leaves in force what it said last.
//
// Live judges keys, and the tenants that are disabled. All else about tenants
// belongs to a generation, which is what a View is for. Its methods are safe for
// concurrent use.
type Live struct {
	cfg    LiveConfig
	log    *slog.Logger
	nobody entry
	snap   atomic.Pointer[snapshot]
	asked  atomic.Pointer[time.Time] // when the Store was last asked that answered

	mu       sync.Mutex // protects what follows, and one change of snap at a time
	used     string     // file
	tenants  watched
	revoked  watched
	version  Version
	warned   map[string]time.Time // end of keys that were warned of, by id
	uses     map[string]*usage
	views    uint64
	failures [sources]failing
}

// The sources of a Live.
const (
	ofTenants = iota
	ofRevoked
	ofStore
	ofUses
	sources
)

// SourceNames are the words by which Stats names the sources: the tenants file,
// the list of revoked credentials, the database, and the notes of use.
var SourceNames = [sources]string{"tenants", "revoked", "database", "used"}

// failing is how a source fails.
type failing struct {
	now   bool
	count uint64
}

// snapshot is what is in force at one time.
type snapshot struct {
	number  uint64 // another one for each change
	file    *Directory
	files   uint64 // another one for each file
	stored  map[string]*entry
	revoked *Revocations
}

// NewLive returns a Live that says what the sources say now; dir is what the
// tenants file says. It fails if a source can't be read.
func NewLive(ctx context.Context, cfg LiveConfig, dir *Directory) (*Live, error) {
	l := &Live{
		cfg: cfg, log: cfg.Log,
		tenants: watched{path: cfg.Tenants, limit: maxFileSize, told: dir.digest},
		revoked: watched{path: cfg.Revoked, limit: maxRevokedFile}, used: cfg.Used,
		warned: make(map[string]time.Time), uses: make(map[string]*usage),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	list := l.revoked.read()
	if list.err != nil && !errors.Is(list.err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the list of revoked keys: %w", list.err)
	}
	l.revoked.tell(list.is)
	s := &snapshot{file: dir, files: 1, revoked: ParseRevoked(list.text)}
	l.use(dir.keys)
	l.snap.Store(s)
	if cfg.Store != nil {
		if err := l.ask(ctx, time.Now()); err != nil {
			return nil, fmt.Errorf("cannot read the keys in the database: %w", err)
		}
	}
	l.loadUses()
	return l, nil
}

// Run follows the sources until ctx ends. What was noted of the use of keys is
// kept when it returns.
func (l *Live) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { every(ctx, lookEvery, l.lookRevoked) })
	if l.cfg.Watch {
		loops.Go(func() { every(ctx, lookEvery, l.lookTenants) })
	}
	if l.cfg.Store != nil {
		loops.Go(func() { every(ctx, askEvery, func(now time.Time) { _ = l.ask(ctx, now) }) })
		loops.Go(func() { every(ctx, askAllEvery, func(time.Time) { l.askAll(ctx) }) })
	}
	l.warn(time.Now())
	loops.Go(func() {
		every(ctx, noteEvery, func(now time.Time) {
			l.noteUses(ctx)
			l.warn(now)
		})
	})
	loops.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	l.noteUses(last)
	return nil
}

// every calls f after each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, f func(now time.Time)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f(time.Now())
		}
	}
}

// lookRevoked takes in a change of the list of revoked credentials.
func (l *Live) lookRevoked(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if got, changed := l.revoked.look(now); changed {
		l.listLocked(got)
	}
}

// listLocked takes in what the list of revoked credentials is now.
func (l *Live) listLocked(got sight) {
	l.revoked.tell(got.is)
	if got.err != nil && !errors.Is(got.err, fs.ErrNotExist) {
		l.failLocked(ofRevoked, got.err)
		return
	}
	l.workLocked(ofRevoked)
	s := *l.snap.Load()
	before := s.revoked.Len()
	s.revoked = ParseRevoked(got.text)
	s.number++
	l.snap.Store(&s)
	l.log.Info("the list of revoked credentials has changed", "file", l.revoked.path, "before", before, "now", s.revoked.Len())
	if s.revoked.Odd > 0 {
		l.log.Warn("lines of the list of revoked credentials name nobody", "file", l.revoked.path, "lines", s.revoked.Odd, "first", s.revoked.FirstOdd)
	}
}

// lookTenants takes in a change of the tenants file.
func (l *Live) lookTenants(now time.Time) {
	l.mu.Lock()
	got, changed := l.tenants.look(now)
	path := l.tenants.path
	l.mu.Unlock()
	if !changed {
		return
	}
	// Without the lock: a large file takes its time, and revocations do not wait.
	dir, err := got.directory(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tenants.path != path || l.tenants.told != got.is {
		return // Adopt has come between, and knows better
	}
	if err != nil {
		l.failLocked(ofTenants, err)
		return
	}
	l.workLocked(ofTenants)
	l.adoptLocked(dir)
	l.log.Info("the keys of the tenants file have changed", "file", path, "keys", len(dir.keys))
}

// directory loads what was read. A bug in that must not end a gateway that serves.
func (s *sight) directory(path string) (d *Directory, err error) {
	defer func() {
		if p := recover(); p != nil {
			d, err = nil, fmt.Errorf("BUG: loading %s failed with a panic (%T)", path, p)
		}
	}()
	if s.err != nil {
		return nil, s.err
	}
	return Load(path, s.text)
}

// Adopt is for a generation that comes into force, and takes over what it has
// read of the tenants file and which files it names. If the tenants file says
// something else by now, and loads, that holds instead, so that a key that was
// revoked since stays so.
func (l *Live) Adopt(files Files, dir *Directory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = files.Used
	if files.Revoked != l.revoked.path {
		l.revoked = watched{path: files.Revoked, limit: maxRevokedFile}
		l.listLocked(l.revoked.read())
	}
	if files.Tenants != l.tenants.path {
		l.tenants = watched{path: files.Tenants, limit: maxFileSize}
	}
	got := l.tenants.read()
	switch {
	case got.err == nil && got.is == l.snap.Load().file.digest:
		l.tenants.tell(got.is)
		l.workLocked(ofTenants)
		return // it is in force
	case got.err == nil && got.is != dir.digest:
		if now, err := got.directory(files.Tenants); err == nil {
			dir = now
		}
	}
	l.tenants.tell(dir.digest)
	l.workLocked(ofTenants)
	l.adoptLocked(dir)
}

func (l *Live) adoptLocked(dir *Directory) {
	l.use(dir.keys)
	s := *l.snap.Load()
	s.file = dir
	s.files++
	s.number++
	l.snap.Store(&s)
}

// failLocked notes and logs that a source fails. A failure that goes on is logged
// once.
func (l *Live) failLocked(source int, err error) {
	f := &l.failures[source]
	f.count++
	if !f.now || source == ofTenants || source == ofRevoked { // those are told once for each state of the file
		l.log.Error("cannot follow the keys; what was read last stays in force", "source", SourceNames[source], "error", err)
	}
	f.now = true
}

func (l *Live) workLocked(source int) {
	if l.failures[source].now {
		l.failures[source].now = false
		l.log.Info("the keys are followed again", "source", SourceNames[source])
	}
}

// stale is how long ago the Store was asked, 0 without a Store.
func (l *Live) stale(now time.Time) time.Duration {
	if l.cfg.Store == nil {
		return 0
	}
	return max(0, now.Sub(*l.asked.Load()))
}

// Revoked reports whether the list of revoked credentials has a principal.
func (l *Live) Revoked(principal string) bool { return l.snap.Load().revoked.Principal(principal) }

// Disabled reports whether the tenants file says, at this moment, that a tenant is
// disabled or does not name it.
func (l *Live) Disabled(tenant string) bool {
	t := l.snap.Load().file.byID[tenant]
	return t == nil || t.Disabled
}

// find returns the entry of a key's id, nil if there is none.
func (s *snapshot) find(id []byte) (e *entry, stored bool) {
	if e, ok := s.stored[string(id)]; ok {
		return e, true
	}
	return s.file.keys[string(id)], false
}
