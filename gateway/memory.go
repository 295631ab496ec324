package gateway

import (
	"errors"
	"io"
	"sync"
	"time"
)

// memoryBudget bounds the memory that the bodies of all requests in flight take, and
// the answers that are held until their client has them. Nobody waits for it: a
// request that finds no room is refused, and whoever is refused tries again. One
// tenant can have half of it, so that the others find room.
type memoryBudget struct {
	limit, share int64

	mu      sync.Mutex // mu protects the fields below
	used    int64
	tenants map[string]int64 // those that use some
	refused memoryRefusals
}

// memoryRefusals counts what found no room, by whose.
type memoryRefusals struct{ total, tenant int64 }

func newMemoryBudget(limit int64) *memoryBudget {
	return &memoryBudget{limit: limit, share: limit / 2, tenants: make(map[string]int64)}
}

// Errors of memory that there is no room for.
var (
	errMemory       = errors.New("the bodies of requests take as much memory as they may")
	errTenantMemory = errors.New("the bodies of one tenant's requests take as much memory as they may")
)

// take takes n bytes, or none and returns errMemory or errTenantMemory.
func (b *memoryBudget) take(tenant string, n int64) error {
	if n == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	has := b.tenants[tenant]
	switch {
	case b.used+n > b.limit:
		b.refused.total++
		return errMemory
	case has+n > b.share:
		b.refused.tenant++
		return errTenantMemory
	}
	b.used += n
	b.tenants[tenant] = has + n
	return nil
}

// give gives back what was taken.
func (b *memoryBudget) give(tenant string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	left := b.tenants[tenant] - n
	if left < 0 || b.used < 0 {
		panic("BUG: more memory was given back than was taken")
	}
	if left == 0 {
		delete(b.tenants, tenant)
		return
	}
	b.tenants[tenant] = left
}

func (b *memoryBudget) stats() (used int64, refused memoryRefusals) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used, b.refused
}

// takeMemory takes n bytes for as long as the request runs.
func (ex *exchange) takeMemory(n int) error {
	err := ex.g.memory.take(ex.principal.Tenant.ID, int64(n))
	if err == nil {
		ex.memory += int64(n)
	}
	return err
}

// returnMemory gives n bytes back of those that the request has taken.
func (ex *exchange) returnMemory(n int) {
	ex.memory -= int64(n)
	ex.g.memory.give(ex.principal.Tenant.ID, int64(n))
}

// giveMemory gives all back that the request has taken.
func (ex *exchange) giveMemory() {
	if ex.memory > 0 {
		ex.g.memory.give(ex.principal.Tenant.ID, ex.memory)
		ex.memory = 0
	}
}

// keepForAnswer lets go of all memory but that of the answer, which is given back
// when the client has it. It comes before the request is finished, which gives back
// what is left.
func (ex *exchange) keepForAnswer() {
	n := ex.answerMemory
	if ex.conn == nil || n == 0 {
		return
	}
	ex.answerMemory, ex.memory = 0, ex.memory-n
	b, tenant := ex.g.memory, ex.principal.Tenant.ID
	ex.conn.afterAnswer(func() { b.give(tenant, n) })
}

// dropAnswer gives back what the answer of an attempt that failed has taken.
func (ex *exchange) dropAnswer() {
	if n := ex.answerMemory; n > 0 {
		ex.answerMemory, ex.memory = 0, ex.memory-n
		ex.g.memory.give(ex.principal.Tenant.ID, n)
	}
}

// noMemory refuses a request for whose body there is no room.
func noMemory(err error) *rejection {
	rej := unavailable("the gateway holds as much of requests as it may at the moment; try again", time.Second)
	if errors.Is(err, errTenantMemory) {
		rej.message = "the requests that you have under way hold as much as one tenant's may; try again when some have ended"
	}
	rej.cause = err
	return rej
}

// answerReader takes memory for an answer as it comes. What was announced is taken
// at once.
type answerReader struct {
	from io.Reader
	ex   *exchange
	room int
}

// answerStep is the least that is taken at a time.
const answerStep = 64 << 10

func (r *answerReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if r.room -= n; r.room < 0 {
		// A buffer that is full doubles.
		more := max(2*-r.room, answerStep, int(r.ex.answerMemory))
		if full := r.take(more); full != nil {
			return n, full
		}
	}
	return n, err
}

func (r *answerReader) take(n int) error {
	if err := r.ex.takeMemory(n); err != nil {
		return err
	}
	r.room += n
	r.ex.answerMemory += int64(n)
	return nil
}
