package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of ParseFrames, for callers that count them apart.
var (
	// ErrFrames is a message with too few or too many frames.
	ErrFrames = errors.New("not an event message")
	// ErrSeq is a message whose sequence frame is not 8 bytes.
	ErrSeq = errors.New("sequence frame of the wrong length")
)

// endSeq is the sequence number of the message that ends a replay.
const endSeq = 1<<64 - 1

// Message is one event message taken apart. Its slices are those given to
// ParseFrames.
type Message struct {
	// Topic is whatever the publisher was configured with, often empty.
	Topic []byte
	// Seq counts the batches of one engine process, from 0.
	Seq uint64
	// Payload is the msgpack batch.
	Payload []byte
	// End says that this message carries no batch but ends a replay.
	End bool
}

// ParseFrames takes a message apart, live or replayed:
//
//	[seq, payload]              without a topic
//	[topic, seq, payload]       live
//	["", seq, payload]          replayed, engines before 0.26
//	["", topic, seq, payload]   replayed, engines from 0.26 on
//
// In all of them the payload is last and the sequence number before it. The
// end of a replay is a message whose sequence number has all bits set and
// whose payload is empty. A message with a sequence frame that is not 8 bytes
// is refused rather than guessed at: a wrong number would look like a restart,
// while a lost message is a gap, and gaps are repaired.
func ParseFrames(frames [][]byte) (Message, error) {
	n := len(frames)
	if n < 2 || n > 4 {
		return Message{}, fmt.Errorf("%w: it has %d frames, want 2 to 4", ErrFrames, n)
	}
	seq := frames[n-2]
	if len(seq) != 8 {
		return Message{}, fmt.Errorf("%w: it has %d bytes, want 8", ErrSeq, len(seq))
	}
	m := Message{Seq: binary.BigEndian.Uint64(seq), Payload: frames[n-1]}
	if n > 2 {
		m.Topic = frames[n-3]
	}
	if m.Seq == endSeq {
		if len(m.Payload) != 0 {
			return Message{}, fmt.Errorf("%w: the end marker carries a payload", ErrFrames)
		}
		m.End = true
	}
	return m, nil
}
