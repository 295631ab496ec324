package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// session is what the store and this process know each other by: the store's epoch,
// which it has anew once it has lost data, and the replica's id, which is anew each
// time it joins. What is leased belongs to one session and ends with it.
type session struct {
	number uint64
	epoch  string
	id     string
	link   *link
	keys   [3]string // the store's, the replicas', the record
	args   [4]string // epoch, id, DeadAfter, LeaseShare

	// mu protects the calls: whose outcome is awaited, those that are over, and
	// those whose outcome never came.
	mu       sync.Mutex
	last     uint64
	awaited  map[uint64]bool
	over     []uint64
	unknown  []call
	flushSeq uint64 // of Run's goroutine
}

// call is one question to the store.
type call struct {
	seq      uint64
	counters []*counter
}

// errSession is the store's word that it does not know the session any more.
var errSession = errors.New("the store does not know this replica any more")

// sessionError says why: epoch if the store has lost its data.
type sessionError struct{ epoch bool }

func (e *sessionError) Error() string {
	if e.epoch {
		return "the store has lost its data"
	}
	return "the store has given this replica up as dead"
}

func (e *sessionError) Is(target error) bool { return target == errSession }

// join makes a session.
func (l *Limiter) join(ctx context.Context, number uint64) (*session, error) {
	base := "{" + l.cfg.Prefix + "}:"
	s := &session{number: number, id: l.cfg.Replica + "-" + random(), link: &l.link, awaited: make(map[uint64]bool)}
	s.keys = [3]string{base + "store", base + "replicas", base + "r:" + s.id}
	s.args = [4]string{"", s.id, strconv.FormatInt(l.cfg.DeadAfter.Milliseconds(), 10), strconv.FormatFloat(l.cfg.LeaseShare, 'g', -1, 64)}
	text, err := s.eval(ctx, "join", nil, random())
	if err != nil {
		return nil, err
	}
	epoch, ok := strings.CutPrefix(text, "joined ")
	if !ok {
		return nil, answerError(text)
	}
	s.epoch, s.args[0] = epoch, epoch
	return s, nil
}

// leave gives up the session: the store takes back what is leased.
func (s *session) leave(ctx context.Context) error {
	text, err := s.eval(ctx, "leave", nil)
	if err == nil && text != "left" {
		err = answerError(text)
	}
	return err
}

func random() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (s *session) eval(ctx context.Context, op string, counters []string, args ...string) (string, error) {
	keys := append(s.keys[:len(s.keys):len(s.keys)], counters...)
	all := make([]string, 0, 1+len(s.args)+len(args))
	all = append(append(append(all, op), s.args[:]...), args...)
	return s.link.eval(ctx, keys, all)
}

// begin numbers a call.
func (s *session) begin(needs []need) call {
	c := call{}
	for i := range needs {
		if needs[i].lack >= 0 {
			c.counters = append(c.counters, needs[i].counter)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	c.seq = s.last
	s.awaited[c.seq] = true
	return c
}

// end notes that nobody waits for a call any more. Where its outcome is not known,
// the next report has it undone.
func (s *session) end(c call, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.awaited, c.seq)
	if known {
		s.over = append(s.over, c.seq)
	} else {
		s.unknown = append(s.unknown, c)
	}
}

// closed are the calls that a report can close: those up to the floor, after which
// one is still awaited. A call up to there that reaches the store later does nothing.
func (s *session) closed(most int) (floor uint64, over []uint64, unknown []call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	floor = s.last
	for seq := range s.awaited {
		floor = min(floor, seq-1)
	}
	over = s.over[:min(len(s.over), most)]
	s.over = slices.Clone(s.over[len(over):])
	s.unknown = slices.DeleteFunc(s.unknown, func(c call) bool {
		if c.seq > floor || len(unknown) >= most {
			return false
		}
		unknown = append(unknown, c)
		return true
	})
	for _, c := range s.unknown {
		floor = min(floor, c.seq-1)
	}
	return floor, over, unknown
}

// answer is what the store says of one counter to a request.
type answer struct {
	turn, granted, avail int64
	wait                 time.Duration
	rest, period         int64
}

// reserve asks for what needs lack. It returns the store's words.
func (s *session) reserve(ctx context.Context, seq uint64, needs []need) (string, error) {
	keys := make([]string, 0, len(needs))
	args := append(make([]string, 0, 1+6*len(needs)), strconv.FormatUint(seq, 10))
	for i := range needs {
		n := &needs[i]
		if n.lack < 0 {
			continue
		}
		c := n.counter
		keys = append(keys, c.key)
		args = append(args, string(c.kind), itoa(c.limit), itoa(c.window), itoa(n.lack), itoa(n.owed), itoa(max(0, n.more)))
	}
	return s.eval(ctx, "reserve", keys, args...)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// read takes the store's answer apart.
func (p *plan) read(text string) (granted bool, err error) {
	w := words{text: text}
	switch w.next() {
	case "ok":
		granted = true
	case "no":
	default:
		return false, answerError(text)
	}
	near, turn := w.int(), w.int()
	for i := range p.needs {
		n := &p.needs[i]
		if n.lack < 0 {
			continue
		}
		a := &n.answer
		a.turn = turn
		a.granted, a.avail = w.int(), w.int()
		wait := w.int()
		a.rest, a.period = w.int(), w.int()
		a.wait = time.Duration(min(wait, int64(maxWait/time.Millisecond))) * time.Millisecond
		if wait < 0 {
			a.wait = never
		}
	}
	if err := w.end(); err != nil {
		return false, err
	}
	p.limiter.near.Store(near)
	return granted, nil
}

// answerError is what an answer means that is none.
func answerError(text string) error {
	switch text {
	case "epoch":
		return &sessionError{epoch: true}
	case "gone":
		return &sessionError{}
	}
	return fmt.Errorf("the store gave an answer of %d bytes that is none of ours", len(text))
}

// words reads an answer, space by space.
type words struct {
	text string
	bad  bool
}

func (w *words) next() string {
	if w.text == "" {
		w.bad = true
		return ""
	}
	word, rest, _ := strings.Cut(w.text, " ")
	w.text = rest
	return word
}

func (w *words) int() int64 {
	n, err := strconv.ParseInt(w.next(), 10, 64)
	if err != nil {
		w.bad = true
	}
	return n
}

func (w *words) end() error {
	if w.bad || w.text != "" {
		return errors.New("the store gave an answer that does not fit the question")
	}
	return nil
}
