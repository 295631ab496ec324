package scoring

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRoomIsTold goes through everything that can be done to a fleet from outside.
// What may let a request that waits go on has to tell so, once, when it is true and
// no lock is held; what can't is named with its reason. A new method fails here until
// it is in one of the two lists.
func TestRoomIsTold(t *testing.T) {
	const other = 2
	later := epoch.Add(time.Second)
	tells := map[string]func(f *Fleet, id WorkerID, r *Reservation){
		"Fleet.Remove":        func(f *Fleet, id WorkerID, _ *Reservation) { f.Remove(id) },
		"Fleet.Retire":        func(f *Fleet, id WorkerID, _ *Reservation) { f.Retire(id, "it goes") },
		"Fleet.SetReady":      func(f *Fleet, id WorkerID, _ *Reservation) { f.SetReady(later, other, true, "") },
		"Fleet.SetTrial":      func(f *Fleet, id WorkerID, _ *Reservation) { f.SetTrial(id, true) },
		"Fleet.SetAdapters":   func(f *Fleet, id WorkerID, _ *Reservation) { f.SetAdapters(id, []string{"tune"}) },
		"Fleet.SetContext":    func(f *Fleet, id WorkerID, _ *Reservation) { f.SetContext(id, 4096) },
		"Fleet.SetCapacity":   func(f *Fleet, id WorkerID, _ *Reservation) { f.SetCapacity(id, 16, 100) },
		"Fleet.SetView":       func(f *Fleet, id WorkerID, _ *Reservation) { f.SetView(id, 0, ViewPartial) },
		"Fleet.SetPriorities": func(f *Fleet, id WorkerID, _ *Reservation) { f.SetPriorities("p", true) },
		"Fleet.ClearView":     func(f *Fleet, id WorkerID, _ *Reservation) { f.ClearView(id, 0) },
		"Fleet.ObserveLoad":   func(f *Fleet, id WorkerID, _ *Reservation) { f.ObserveLoad(later, id, Load{Running: 1}) },
		"Fleet.Saturated":     func(f *Fleet, id WorkerID, _ *Reservation) { f.Saturated(later, id) },
		"Fleet.ApplyEvents": func(f *Fleet, id WorkerID, _ *Reservation) {
			f.ApplyEvents(later, id, 0, []Event{{Kind: AllBlocksCleared}})
		},
		"Reservation.FirstToken": func(_ *Fleet, _ WorkerID, r *Reservation) { r.FirstToken(later) },
		"Reservation.Done":       func(_ *Fleet, _ WorkerID, r *Reservation) { r.Done(later, Completed) },
	}
	const (
		takes  = "it takes room, or reads"
		starts = "it has no worker that is ready yet"
		none   = "it changes nothing that an offer goes by"
	)
	silent := map[string]string{
		"Fleet.Add": starts, "Fleet.OnRoom": none,
		"Fleet.Pick": takes, "Fleet.Prepare": takes, "Fleet.Offer": takes, "Fleet.Wait": takes, "Fleet.Serves": takes, "Prepared.Release": takes,
		"Fleet.InFlight": takes, "Fleet.Snapshot": takes, "Fleet.Predictions": takes, "Fleet.Stats": takes,
		"Reservation.Worker": takes, "Reservation.Predicted": takes, "Reservation.PredictedP90": takes, "Reservation.Cached": takes,
		"Reservation.Prompt": takes, "Reservation.Work": takes, "Reservation.Inferred": takes, "Reservation.Output": none,
	}
	for _, of := range []any{new(Fleet), new(Reservation), new(Prepared)} {
		typ := reflect.TypeOf(of)
		for m := range typ.Methods() {
			name := strings.TrimPrefix(typ.String(), "*scoring.") + "." + m.Name
			_, told := tells[name]
			if _, known := silent[name]; told == known {
				t.Errorf("%s is in %d of the lists of this test: can a request that waits go on by it?", name, map[bool]int{true: 2}[told])
			}
		}
	}
	for name, do := range tells {
		f, ids := testFleet(t, 2)
		f.SetReady(epoch, other, false, "not yet")
		r := pick(t, f, epoch, &Request{Estimate: 100})
		var heard []string
		f.OnRoom(func(pool string) {
			if !f.mu.TryLock() {
				t.Errorf("%s tells of room with the lock held", name)
				return
			}
			f.mu.Unlock()
			heard = append(heard, pool)
		})
		do(f, ids[0], r)
		if !slices.Equal(heard, []string{"p"}) {
			t.Errorf("%s tells of room in the pools %q, want p once", name, heard)
		}
		heard = nil
		switch name { // a second time is no news
		case "Fleet.ObserveLoad", "Fleet.Saturated", "Fleet.SetCapacity", "Fleet.SetView", "Fleet.ClearView", "Fleet.ApplyEvents":
		default:
			do(f, ids[0], r)
			if len(heard) > 0 {
				t.Errorf("%s tells of room again although nothing changed", name)
			}
		}
		f.OnRoom(nil)
		r.Done(later, Completed)
	}
}
