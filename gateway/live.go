package gateway

import (
	"sync"
	"time"
)

// liveSet is the set of running requests, so that a shutdown past its deadline
// can cut them.
type liveSet struct {
	// mu protects set.
	mu  sync.Mutex
	set map[*exchange]struct{}
}

func (l *liveSet) init() { l.set = make(map[*exchange]struct{}) }

func (l *liveSet) add(ex *exchange) {
	l.mu.Lock()
	l.set[ex] = struct{}{}
	l.mu.Unlock()
}

func (l *liveSet) remove(ex *exchange) {
	l.mu.Lock()
	delete(l.set, ex)
	l.mu.Unlock()
}

// cutAll ends every running request's wait for its worker; each then finishes
// with its own error.
func (l *liveSet) cutAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ex := range l.set {
		ex.cut()
	}
}

// each calls f for every running request. f must not wait.
func (l *liveSet) each(f func(*exchange)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ex := range l.set {
		f(ex)
	}
}

// connSet is the set of open client connections, so that a shutdown past its
// deadline doesn't wait for requests that are still on their way.
type connSet struct {
	// mu protects the fields below.
	mu      sync.Mutex
	set     map[*conn]struct{}
	stopped bool
	writeBy time.Time // once it is stopped
}

func (s *connSet) init() { s.set = make(map[*conn]struct{}) }

func (s *connSet) add(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set[c] = struct{}{}
	if s.stopped {
		c.stopReading()
		c.endWrites(s.writeBy)
	}
}

func (s *connSet) remove(c *conn) {
	s.mu.Lock()
	delete(s.set, c)
	s.mu.Unlock()
}

func (s *connSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.set)
}

// stop ends the reading of requests on every connection, those to come included, and
// at writeBy the writing of answers.
func (s *connSet) stop(writeBy time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped, s.writeBy = true, writeBy
	for c := range s.set {
		c.stopReading()
		c.endWrites(writeBy)
	}
}

// endIdle ends the connections that wait for a request.
func (s *connSet) endIdle(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.set {
		c.endIdle(now)
	}
}
