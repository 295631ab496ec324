package scoring

import "slices"

// Retire takes a worker out of every later pick for good, as the first half of
// [Fleet.Remove]: its name is free for another worker at once, while the
// requests it has go on and count as before. SetReady no longer concerns it.
// The caller removes it when [Fleet.InFlight] is 0, or when it has waited for
// long enough.
func (f *Fleet) Retire(id WorkerID, reason string) {
	f.change(id, func(w *worker) bool {
		was := w.retired
		w.retired, w.ready, w.reason = true, false, reason
		return !was
	})
}

// InFlight is the number of requests that the worker has and that are not done;
// 0 for a worker that is gone.
func (f *Fleet) InFlight(id WorkerID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.byID[id]; w != nil {
		return w.inFlight()
	}
	return 0
}

// SetTrial says whether the worker has to prove itself first: while on trial it
// is given one request at a time, unless no other worker can take a request.
func (f *Fleet) SetTrial(id WorkerID, on bool) {
	f.change(id, func(w *worker) bool {
		was := w.trial
		w.trial = on
		return was != on
	})
}

// SetAdapters replaces the names of the LoRA adapters that the worker has
// loaded; see [WorkerSpec.Adapters]. Blocks that its cache holds of an adapter
// stay known, as they stay in the engine's cache. adapters is copied.
func (f *Fleet) SetAdapters(id WorkerID, adapters []string) {
	f.change(id, func(w *worker) bool {
		was := w.spec.Adapters
		w.spec.Adapters = slices.Clone(adapters)
		return !slices.Equal(was, adapters)
	})
}

// SetContext says how many tokens a prompt and its answer can have together on the
// worker; 0 is not known, as of a worker that has just been added.
func (f *Fleet) SetContext(id WorkerID, tokens int) {
	f.change(id, func(w *worker) bool {
		was := w.context
		w.context = max(0, tokens)
		return was != w.context
	})
}

// busyTrial reports whether the worker is on trial and has its one request. It
// requires that the fleet's mu is held.
func (w *worker) busyTrial() bool { return w.trial && w.inFlight() > 0 }

// addTrials makes the workers candidates that were left out for being on trial:
// nobody else is left. It requires that f.mu is held.
func (f *Fleet) addTrials(req *Request, s *scratch) {
	s.trials = true
	for _, w := range f.workers {
		if w.ready && !w.retired && req.permits(w) && req.fits(w) && !slices.Contains(req.Exclude, w.id) {
			s.add(w, req, f.cfg.BlockSize)
		}
	}
}
