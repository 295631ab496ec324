package gateway

import "sync"

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
