package scoring

import (
	"container/list"
	"slices"
)

// orphans are stored blocks of one view whose parent is not known (yet), such
// as the second piece of a prompt whose first piece was published before the
// subscription began. They wait for the parent, in a bounded number; the oldest
// are given up first. The zero value with a limit is ready for use.
type orphans struct {
	// limit bounds blocks, which counts the blocks of all runs.
	limit, blocks int

	byParent map[orphanID][]*orphan
	byHash   map[orphanID]orphanRef
	// order holds the runs (*orphan), oldest first.
	order list.List
}

// orphan is a run of blocks, each the parent of the next, as one event gave it.
type orphan struct {
	id     orphanID // the parent they wait for
	hashes []uint64
	// tiers says where each block is; a block that was removed while it waited
	// is in none, and still links its children to the chain.
	tiers  []tierSet
	tokens []uint32
	size   int
	usable int
	// elem is the run's place in order.
	elem *list.Element
}

type orphanID struct {
	group *group
	hash  uint64
}

type orphanRef struct {
	run *orphan
	i   int
}

// add puts n blocks of ev from the given one aside until parent is known.
func (o *orphans) add(g *group, parent uint64, ev *Event, from, n int, st *ApplyStats) {
	if n > o.limit {
		st.HeldDropped += n
		return
	}
	for o.blocks+n > o.limit {
		st.HeldDropped += o.dropOldest()
	}
	if o.byParent == nil {
		o.byParent = make(map[orphanID][]*orphan)
		o.byHash = make(map[orphanID]orphanRef)
	}
	run := &orphan{
		id:     orphanID{g, parent},
		hashes: make([]uint64, n),
		tiers:  make([]tierSet, n),
		tokens: slices.Clone(ev.Tokens[from*ev.BlockSize : (from+n)*ev.BlockSize]),
		size:   ev.BlockSize,
		usable: ev.Usable - from,
	}
	for i, h := range ev.Hashes[from : from+n] {
		run.hashes[i], run.tiers[i] = foldHash(h), 1<<ev.Tier
		id := orphanID{g, run.hashes[i]}
		if was, ok := o.byHash[id]; ok {
			run.tiers[i] |= was.run.tiers[was.i]
			was.run.tiers[was.i] = 0
		}
		o.byHash[id] = orphanRef{run, i}
	}
	o.byParent[run.id] = append(o.byParent[run.id], run)
	run.elem = o.order.PushBack(run)
	o.blocks += n
	st.HeldBack += n
}

// find returns the tiers of a waiting block, nil when it does not wait.
func (o *orphans) find(g *group, hash uint64) *tierSet {
	ref, ok := o.byHash[orphanID{g, hash}]
	if !ok {
		return nil
	}
	return &ref.run.tiers[ref.i]
}

// forget takes a block out of all tiers: the view has it by another way.
func (o *orphans) forget(g *group, hash uint64) {
	if s := o.find(g, hash); s != nil {
		*s = 0
	}
}

// take removes and returns the runs that wait for a parent, oldest first.
func (o *orphans) take(g *group, parent uint64) []*orphan {
	id := orphanID{g, parent}
	runs := o.byParent[id]
	for _, run := range runs {
		o.unlink(run)
	}
	delete(o.byParent, id)
	return runs
}

// dropOldest gives up the oldest run and returns its number of blocks.
func (o *orphans) dropOldest() int {
	run := o.order.Front().Value.(*orphan)
	o.unlink(run)
	if rest := slices.DeleteFunc(o.byParent[run.id], func(r *orphan) bool { return r == run }); len(rest) > 0 {
		o.byParent[run.id] = rest
	} else {
		delete(o.byParent, run.id)
	}
	return len(run.hashes)
}

// unlink takes a run out of order, byHash and the count.
func (o *orphans) unlink(run *orphan) {
	o.order.Remove(run.elem)
	o.blocks -= len(run.hashes)
	for i, h := range run.hashes {
		id := orphanID{run.id.group, h}
		if o.byHash[id] == (orphanRef{run, i}) {
			delete(o.byHash, id)
		}
	}
}

func (o *orphans) reset() { *o = orphans{limit: o.limit} }
