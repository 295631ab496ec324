package scoring

// OnRoom has fn called with the name of a pool whenever something was reported by
// which a request that waits may have come to be within its bound: a worker has room,
// or one that was waited for is gone. fn is called without a lock
// of the fleet's, from the goroutine that reported; it must not block, nor call the
// fleet. It replaces the last one. Room that comes by the passing of time alone is
// not reported; see [Fleet.Wait] and [Refusal].
func (f *Fleet) OnRoom(fn func(pool string)) {
	if fn == nil {
		f.room.Store(nil)
		return
	}
	f.room.Store(&fn)
}

// madeRoom tells who listens that a worker of the pool may have room. It requires
// that f.mu is not held.
func (f *Fleet) madeRoom(pool string) {
	if fn := f.room.Load(); fn != nil {
		(*fn)(pool)
	}
}

// change makes a change to a worker, and tells who listens if do reports that it may
// have made room. A worker that is gone is left alone.
func (f *Fleet) change(id WorkerID, do func(*worker) bool) {
	f.mu.Lock()
	w := f.byID[id]
	room := w != nil && do(w)
	f.mu.Unlock()
	if room {
		f.madeRoom(w.spec.Pool)
	}
}
