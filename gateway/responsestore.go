package gateway

import (
	"container/list"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// storedResponse is whose a response is, and which worker keeps it.
type storedResponse struct {
	id, tenant string
	model      string
	pool       string
	worker     scoring.WorkerID
	until      time.Time
}

// responseStore remembers which worker keeps which response, for a time and up to a
// number of them. What a response says stays with its worker. The zero value keeps
// none. It is safe for concurrent use.
type responseStore struct {
	most int
	keep time.Duration

	mu       sync.Mutex // protects what follows
	byID     map[string]*list.Element
	byTenant map[string]*list.List // of *storedResponse, the oldest first
	bytes    int64
	expired  int64 // dropped when their time was over
	pushed   int64 // dropped before, for others
}

// StoredStats says how many responses the gateway knows the worker of, of at most how
// many, what that takes in memory, and how many it has dropped: when their time was over
// (one that nobody asks for is dropped when room is needed), or before, for others.
type StoredStats struct {
	Entries, Most   int
	Bytes           int64
	Expired, Pushed int64
}

// Stored returns what is known of stored responses.
func (g *Gateway) Stored() StoredStats { return g.responses.stats() }

func (s *responseStore) stats() StoredStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return StoredStats{Entries: len(s.byID), Most: s.most, Bytes: s.bytes, Expired: s.expired, Pushed: s.pushed}
}

// storedBytes is what an entry takes beside its id: the record and its places in both
// indices. Other names are shared.
const storedBytes = 256

// bytes is what the entry takes.
func (r *storedResponse) bytes() int64 { return storedBytes + int64(len(r.id)) }

func newResponseStore(most int, keep time.Duration) *responseStore {
	return &responseStore{most: most, keep: keep, byID: make(map[string]*list.Element), byTenant: make(map[string]*list.List)}
}

// on reports whether responses are kept at all.
func (s *responseStore) on() bool { return s.most > 0 }

// bind remembers a response. An id that is known stays whose it is: a worker that gives
// it out twice must not move it to another tenant.
func (s *responseStore) bind(now time.Time, r storedResponse) {
	if !s.on() || !validResponseID(r.id) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[r.id]; e != nil {
		if now.Before(e.Value.(*storedResponse).until) {
			return
		}
		s.expireLocked(e)
	}
	if len(s.byID) >= s.most {
		s.makeRoomLocked(now)
	}
	r.until = now.Add(s.keep)
	l := s.byTenant[r.tenant]
	if l == nil {
		l = list.New()
		s.byTenant[r.tenant] = l
	}
	s.byID[r.id] = l.PushBack(&r)
	s.bytes += r.bytes()
}

// find returns a tenant's response: another's is as unknown as one that never was.
func (s *responseStore) find(now time.Time, tenant, id string) (storedResponse, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e == nil {
		return storedResponse{}, false
	}
	r := e.Value.(*storedResponse)
	if !now.Before(r.until) {
		s.expireLocked(e)
		return storedResponse{}, false
	}
	return *r, r.tenant == tenant
}

// forget drops a tenant's response.
func (s *responseStore) forget(tenant, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[id]; e != nil && e.Value.(*storedResponse).tenant == tenant {
		s.removeLocked(e)
	}
}

// makeRoomLocked drops what has expired or, where nothing has, the oldest response of
// the tenant that has the most: one that makes many doesn't push out those of others.
func (s *responseStore) makeRoomLocked(now time.Time) {
	var largest *list.List
	for _, l := range s.byTenant {
		for e := l.Front(); e != nil && !now.Before(e.Value.(*storedResponse).until); e = l.Front() {
			s.expireLocked(e)
		}
		if largest == nil || l.Len() > largest.Len() {
			largest = l
		}
	}
	if len(s.byID) >= s.most {
		s.removeLocked(largest.Front())
		s.pushed++
	}
}

// expireLocked drops a response whose time is over.
func (s *responseStore) expireLocked(e *list.Element) {
	s.removeLocked(e)
	s.expired++
}

// removeLocked takes a response out of both indices.
func (s *responseStore) removeLocked(e *list.Element) {
	r := e.Value.(*storedResponse)
	delete(s.byID, r.id)
	s.bytes -= r.bytes()
	l := s.byTenant[r.tenant]
	l.Remove(e)
	if l.Len() == 0 {
		delete(s.byTenant, r.tenant)
	}
}

// len is how many responses are known.
func (s *responseStore) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// maxResponseID is the longest id that a route takes.
const maxResponseID = 128

// validResponseID reports whether an id is one that routes take.
func validResponseID[T string | []byte](id T) bool {
	if len(id) == 0 || len(id) > maxResponseID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
