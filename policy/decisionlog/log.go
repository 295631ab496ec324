package decisionlog

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// Log is a decision log. Its methods are safe for concurrent use, retain none
// of their arguments, and never wait for the disk.
type Log struct {
	cfg    Config
	log    *slog.Logger
	sample sampler
	redact *redaction // nil without mask and drop
	queue  *queue
	held   *held
	file   *file
	now    func() time.Time
	reopen chan struct{}
	// hashers holds *hasher with the key.
	hashers sync.Pool

	sampledOut, failures, bytes atomic.Uint64
	written                     [kinds]atomic.Uint64
	failing                     atomic.Bool
}

// Counts are numbers of records by type.
type Counts struct{ Decision, Shadow, Settlement uint64 }

// Stats are totals since Open, and what waits.
type Stats struct {
	// Written records have reached the file; Dropped ones were lost, since the
	// queue was full or the disk failed.
	Written, Dropped Counts
	// SampledOut decisions were left out by the share that is kept.
	SampledOut uint64
	// Bytes were written, in Rotations + 1 files.
	Bytes, Rotations uint64
	// Errors counts failed attempts to encode, write, rotate, compress or delete.
	Errors uint64
	// Queued records wait for the writer, QueuedBytes bytes of them; Held ones
	// wait for a rehearsal to say whether they are kept.
	Queued, QueuedBytes, Held int
	// Failing is whether the last attempt to write has failed. It is tried again
	// every second while records wait.
	Failing bool
}

// Open checks the configuration and opens the file, which it creates with
// access for its owner alone. A second Log on the same path, also of another
// process, is refused. Either Run or Close must be called to release the file.
func Open(cfg Config, log *slog.Logger) (*Log, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("cannot open the decision log: %w", err)
	}
	cfg.Plain, cfg.HashKey = slices.Clone(cfg.Plain), slices.Clone(cfg.HashKey)
	share := 1.0
	if s, ok := cfg.Sample["allow"]; ok {
		share = s
	}
	records, size := cfg.Queue, cfg.QueueBytes
	if cfg.Refuse {
		records, size = 2*records, 2*size // see Ready
	}
	l := &Log{
		cfg: cfg, log: log, sample: newSampler(share), redact: newRedaction(cfg.Mask, cfg.Drop),
		queue: newQueue(records, size), held: newHeld(cfg.Queue, cfg.QueueBytes),
		now: time.Now, reopen: make(chan struct{}, 1),
	}
	l.hashers.New = func() any { return &hasher{mac: hmac.New(sha256.New, l.cfg.HashKey)} }
	var err error
	cannotRotate := func(err error) { l.failed("cannot rotate the decision log, which grows beyond its size", err) }
	if l.file, err = openFile(cfg, cannotRotate); err != nil {
		return nil, fmt.Errorf("cannot open the decision log: %w", err)
	}
	return l, nil
}

// Ready is false while a request should be refused because its decision might
// not be recorded: with Refuse, once as many records wait as Queue and
// QueueBytes say. As many again find room then, so that requests that were
// admitted at the same time, and those in flight that settle, lose no record.
func (l *Log) Ready() bool {
	return !l.cfg.Refuse || !l.queue.holds(l.cfg.Queue, l.cfg.QueueBytes)
}

// Decided notes a verdict. It is called once the verdict stands, that is after
// limits were reserved or refused. It reports whether there is a record whose
// settlement belongs in the log: one that was queued, or one that sampling
// leaves out unless its rehearsal turns it into one to keep. After false,
// Settled need not be called.
func (l *Log) Decided(id, requestID string, at time.Time, in *policy.Input, d *policy.Decision) bool {
	keep := l.keeps(id, d)
	rehearses := !keep && d.Rehearses()
	if !keep && !rehearses {
		l.sampledOut.Add(1)
		return false
	}
	b := buffers.Get().(*bytes.Buffer)
	defer release(b)
	if !l.encodeDecision(b, id, requestID, at, in, d) {
		return false
	}
	if keep {
		return l.queue.put(decisionKind, b.Bytes())
	}
	for _, line := range l.held.put(id, b.Bytes()) {
		l.queue.put(decisionKind, line)
	}
	return true
}

// keeps is whether a decision's records are kept, whatever a rehearsal says.
func (l *Log) keeps(id string, d *policy.Decision) bool { return l.sample.keeps(id) || !plain(d) }

// Rehearsed notes the outcome of a rehearsal, if there is anything to say: a
// binding matched, an expression failed or was skipped, or the rehearsal itself
// was left out. A decision that sampling has left out is then written before it.
func (l *Log) Rehearsed(id string, at time.Time, o policy.RehearsalOutcome) {
	if !o.LogInFull && len(o.WouldDeny)+len(o.Errors) == 0 && o.Skipped == 0 && !o.LeftOut {
		l.letGo(id)
		return
	}
	if line := l.held.keep(id); line != nil {
		l.queue.put(decisionKind, line)
	}
	l.add(shadowKind, o.Record(policy.RecordOptions{DecisionID: id, Time: at}))
}

// Settled notes the end of a response whose decision Decided has reported true
// for. outcome is completed, client_aborted, upstream_error or not_sent. waited is
// the time in the queue. d is the decision that Decided was called with; charged and
// available are parallel to its limits, and available may be nil.
func (l *Log) Settled(id string, at time.Time, outcome, pool string, waited time.Duration, u policy.Usage, d *policy.Decision, charged, available []int64) {
	if was, kept := l.letGo(id); was && !kept || !was && !l.keeps(id, d) {
		return
	}
	l.add(settlementKind, d.Settlement(policy.RecordOptions{DecisionID: id, Time: at, Waited: waited}, outcome, pool, u, charged, available))
}

// letGo forgets a held record, if there is one, and counts one that was not
// written as left out.
func (l *Log) letGo(id string) (was, kept bool) {
	was, kept = l.held.settle(id)
	if was && !kept {
		l.sampledOut.Add(1)
	}
	return was, kept
}

// Reopen is for tools that have moved the file away: whatever is recorded after
// the call goes to a file that Run opens under the path. It returns at once, and
// the old file is closed with the next record.
func (l *Log) Reopen() {
	select {
	case l.reopen <- struct{}{}:
	default:
	}
}

// Stats are the totals so far.
func (l *Log) Stats() Stats {
	queued, size, dropped := l.queue.state()
	counts := func(of func(k kind) uint64) Counts {
		return Counts{of(decisionKind), of(shadowKind), of(settlementKind)}
	}
	return Stats{
		Written: counts(func(k kind) uint64 { return l.written[k].Load() }),
		Dropped: counts(func(k kind) uint64 { return dropped[k] }), SampledOut: l.sampledOut.Load(),
		Bytes: l.bytes.Load(), Rotations: l.file.rotations.Load(), Errors: l.failures.Load(),
		Queued: queued, QueuedBytes: size, Held: l.held.len(), Failing: l.failing.Load(),
	}
}

// encodeDecision makes the line of a verdict.
func (l *Log) encodeDecision(b *bytes.Buffer, id, requestID string, at time.Time, in *policy.Input, d *policy.Decision) bool {
	o := policy.RecordOptions{DecisionID: id, RequestID: requestID, Gateway: l.cfg.Gateway, Time: at}
	if len(l.cfg.HashKey) > 0 {
		o.Hash = l.hash
	}
	r := d.Record(in, o)
	l.uncover(&r.Input.Request, &in.Request)
	for _, name := range credentialHeaders {
		delete(r.Input.Request.Headers, name) // the record has a map of its own
	}
	if l.encode(b, r) {
		return true
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, "claims are left out of a decision record", slog.String("decision_id", id))
	// A claim can hold what JSON has no word for, such as an infinite number. The
	// rest of the record is worth more than none.
	r.Input.Principal.Claims = map[string]any{}
	if !l.encode(b, r) {
		l.queue.lose(decisionKind)
		return false
	}
	return true
}

// credentialHeaders carry credentials. The configuration does not let policies
// read them; they are named here once more since a record outlives a mistake.
var credentialHeaders = []string{"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}

// uncover writes the fields of Plain as they are.
func (l *Log) uncover(r *policy.RecordRequest, in *policy.RequestInput) {
	for _, name := range l.cfg.Plain {
		switch name {
		case "user":
			r.User = deref(in.User)
		case "session_id":
			r.SessionID = deref(in.SessionID)
		case "source_ip":
			r.SourceIP = in.SourceIP
		}
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// hash is the keyed hash of a client's identifier. The prefix keeps it apart
// from other uses of the same key.
func (l *Log) hash(value string) string {
	h := l.hashers.Get().(*hasher)
	defer l.hashers.Put(h)
	h.mac.Reset()
	h.buf = append(append(h.buf[:0], "sluice decision log\x00"...), value...)
	h.mac.Write(h.buf)
	h.buf = h.mac.Sum(h.buf[:0])
	return "hmac:" + hex.EncodeToString(h.buf[:16])
}

// hasher is a keyed hash with its scratch, used again since a new one costs as
// much as the hash itself.
type hasher struct {
	mac hash.Hash
	buf []byte
}

// add encodes and queues a record.
func (l *Log) add(k kind, record any) {
	b := buffers.Get().(*bytes.Buffer)
	defer release(b)
	if l.encode(b, record) {
		l.queue.put(k, b.Bytes())
		return
	}
	l.queue.lose(k)
}

// encode appends a record and a line break to an empty buffer.
func (l *Log) encode(b *bytes.Buffer, record any) bool {
	b.Reset()
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(record); err != nil {
		l.failed("cannot encode a decision record", err)
		return false
	}
	if l.redact != nil {
		line := l.redact.apply(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
		b.Reset()
		b.Write(line)
		b.WriteByte('\n')
	}
	return true
}

// failed counts and logs a fault of the log itself.
func (l *Log) failed(text string, err error) {
	l.failures.Add(1)
	l.log.LogAttrs(context.Background(), slog.LevelError, "a fault of the decision log", slog.String("what", text), slog.String("file", l.cfg.Path), slog.Any("err", err))
}

// buffers holds scratch for lines.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// release gives a buffer back, unless a rare large record has grown it.
func release(b *bytes.Buffer) {
	if b.Cap() <= 64<<10 {
		b.Reset()
		buffers.Put(b)
	}
}
