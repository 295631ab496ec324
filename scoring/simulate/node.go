package simulate

import (
	"encoding/binary"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// node is a worker: an engine, and what is on its way from it to the router.
type node struct {
	id     scoring.WorkerID
	eng    *engine.Engine
	fixed  time.Duration // part of a step
	calls  map[engine.ID]*call
	busy   bool // a step is under way
	posted [][]engine.Event

	// requests, computed (prompt tokens) and busyTime are for the report.
	requests, computed int
	busyTime           time.Duration

	// scratch of translate
	events []scoring.Event
	hashes []scoring.EngineHash
	bytes  []byte
}

// translate turns a batch of the engine's events into the router's, as the
// decoder of a subscription does. Removals in a row become one event. The result
// is valid until the next call.
func (n *node) translate(batch []engine.Event, blockSize int) []scoring.Event {
	n.events, n.hashes, n.bytes = n.events[:0], n.hashes[:0], n.bytes[:0]
	for i := range batch {
		for j := range batch[i].Hashes {
			n.bytes = binary.BigEndian.AppendUint64(n.bytes, batch[i].Hashes[j].Low64())
		}
		if batch[i].Parent != nil {
			n.bytes = binary.BigEndian.AppendUint64(n.bytes, batch[i].Parent.Low64())
		}
	}
	names := string(n.bytes) // one allocation for all hashes
	for at := 0; at < len(names); at += 8 {
		n.hashes = append(n.hashes, scoring.EngineHash(names[at:at+8]))
	}
	left := n.hashes
	for i := range batch {
		e := &batch[i]
		k := len(e.Hashes)
		out := scoring.Event{Hashes: left[:k], BlockSize: blockSize}
		left = left[k:]
		switch e.Kind {
		case engine.Cleared:
			out.Kind = scoring.AllBlocksCleared
		case engine.Removed:
			out.Kind = scoring.BlockRemoved
			if last := len(n.events) - 1; last >= 0 && n.events[last].Kind == scoring.BlockRemoved {
				// The hashes of removals in a row lie side by side.
				was := n.events[last].Hashes
				n.events[last].Hashes = was[:len(was)+k]
				continue
			}
		case engine.Stored:
			out.Kind, out.Tokens, out.LoRA, out.Usable = scoring.BlockStored, e.Tokens, e.LoRA, k
			if e.Parent != nil {
				out.Parent, left = left[0], left[1:]
			} else {
				out.Salt = e.Salt
			}
		}
		n.events = append(n.events, out)
	}
	return n.events
}
