package authn

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

const (
	cacheShards = 16
	// shardRoom times cacheShards is how many principals a cache keeps.
	shardRoom = 4096
	// maxRemembered is how long a principal is kept at most.
	maxRemembered = 5 * time.Minute
)

// Cache remembers principals by the digest of their credential, which itself is
// not kept. It is of one generation, since a mapping may change with the next.
// A zero Cache is empty and ready; it is safe for concurrent use.
type Cache struct {
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu sync.Mutex
	of map[[sha256.Size]byte]remembered
}

// remembered is a principal and how long it may be.
type remembered struct {
	principal *tenancy.Principal
	until     time.Time
	// version and current say whether what the credential was verified by is still
	// in force; current is nil if that can't change.
	version uint64
	current func() uint64
}

// Get returns the principal of a credential, or nil.
func (c *Cache) Get(digest [sha256.Size]byte, now time.Time) *tenancy.Principal {
	s := &c.shards[digest[0]%cacheShards]
	s.mu.Lock()
	r, ok := s.of[digest]
	s.mu.Unlock()
	if !ok || !now.Before(r.until) || r.current != nil && r.current() != r.version {
		return nil
	}
	return r.principal
}

// Put remembers a principal until its credential ends, and five minutes at most,
// as long as current, unless nil, returns version.
func (c *Cache) Put(digest [sha256.Size]byte, p *tenancy.Principal, now time.Time, version uint64, current func() uint64) {
	until := now.Add(maxRemembered)
	if p.ExpiresAt.Before(until) {
		until = p.ExpiresAt
	}
	if !now.Before(until) {
		return
	}
	s := &c.shards[digest[0]%cacheShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = make(map[[sha256.Size]byte]remembered)
	}
	if _, there := s.of[digest]; !there && len(s.of) >= shardRoom {
		s.makeRoom(now)
	}
	s.of[digest] = remembered{p, until, version, current}
}

// makeRoom forgets what has ended of a part of the shard, and something of it in
// any case.
func (s *cacheShard) makeRoom(now time.Time) {
	const look = 64
	n, room := 0, false
	for digest, r := range s.of {
		if n++; n > look {
			break
		}
		if !now.Before(r.until) || n == look && !room {
			delete(s.of, digest)
			room = true
		}
	}
}

// Len is how many principals are remembered.
func (c *Cache) Len() int {
	n := 0
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.of)
		s.mu.Unlock()
	}
	return n
}
