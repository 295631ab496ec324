package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"sync"

	"github.com/sluicegate/sluice/tenancy"
)

// journal keeps the intents of the requests in flight in files beside the
// database, one write call each and no flush: what a process has written
// survives its death, and only a loss of power can take it. An intent is done
// with when its row is durable; the row says so, the journal need not. A file is
// emptied or removed once all its intents are done with.
//
// A record is a tenancy.Intent. One cut short by the end of the process belongs
// to a Begin that did not return.
//
// With sync set, begin waits for the disk: whatever has been written by the time
// of a flush is made durable by it, so one flush serves all who wait.
type journal struct {
	files numbered
	sync  bool

	mu      sync.Mutex // protects everything below
	next    int        // number of the next file
	active  *segment
	holders map[string]*segment // by the id of each open intent
	buf     bytes.Buffer

	flushing sync.Mutex // held by the one that flushes
}

// segment is one file of the journal.
type segment struct {
	file    *os.File
	size    int64
	open    int   // intents in it that are not done with
	flushed int64 // bytes that are durable; protected by journal.flushing
}

const (
	// segmentSize is when a new file is begun, so that one long request does
	// not keep much more than itself.
	segmentSize = 1 << 20
)

// newJournal begins a new file, after those there are.
func newJournal(path string, sync bool) (*journal, error) {
	j := &journal{files: intentFiles(path), sync: sync, next: 1, holders: make(map[string]*segment)}
	names, err := j.files.files()
	if err != nil {
		return nil, err
	}
	if n := len(names); n > 0 {
		j.next = j.files.number(names[n-1]) + 1
	}
	if err := j.rotate(); err != nil {
		return nil, err
	}
	return j, nil
}

func intentFiles(path string) numbered { return numbered{path, "intents"} }

// begin writes an intent.
func (j *journal) begin(in *tenancy.Intent) error {
	s, end, err := j.write(in)
	if err != nil || !j.sync {
		return err
	}
	if err := j.flush(s, end); err != nil {
		j.end(in.ID) // the request is not sent
		return err
	}
	return nil
}

// flush returns when the bytes of a file up to end are durable. The intent at
// end keeps the file from being removed or begun anew.
func (j *journal) flush(s *segment, end int64) error {
	j.flushing.Lock()
	defer j.flushing.Unlock()
	if s.flushed >= end {
		return nil
	}
	j.mu.Lock()
	size := s.size
	j.mu.Unlock()
	if err := s.file.Sync(); err != nil {
		return err
	}
	s.flushed = size
	return nil
}

// write appends an intent, and returns where it ends.
func (j *journal) write(in *tenancy.Intent) (*segment, int64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, dup := j.holders[in.ID]; dup {
		return nil, 0, errors.New("it was announced before")
	}
	if j.active.size >= segmentSize {
		if err := j.rotate(); err != nil {
			return nil, 0, err
		}
	}
	j.buf.Reset()
	if err := writeRecord(&j.buf, in); err != nil {
		return nil, 0, err
	}
	// Written at an offset of our own: after a write that failed halfway, the
	// next record replaces the half one.
	if _, err := j.active.file.WriteAt(j.buf.Bytes(), j.active.size); err != nil {
		return nil, 0, err
	}
	j.active.size += int64(j.buf.Len())
	j.active.open++
	j.holders[in.ID] = j.active
	return j.active, j.active.size, nil
}

// holds reports whether an intent is open.
func (j *journal) holds(id string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, ok := j.holders[id]
	return ok
}

// end is told that the row of an intent is durable. Ids that were never
// announced are fine.
func (j *journal) end(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, ok := j.holders[id]
	if !ok {
		return
	}
	delete(j.holders, id)
	s.open--
	if s.open > 0 {
		return
	}
	if s != j.active {
		s.remove()
		return
	}
	// Nothing is in flight: start the file over, unless it is hardly used. A
	// failure costs space alone, since its intents all have rows. Where flushes
	// are waited for, what is durable of a file must not go back, so it is left
	// to grow to the size at which the next one is begun.
	if !j.sync && s.size > segmentSize/16 && s.file.Truncate(0) == nil {
		s.size = 0
	}
}

// rotate begins a new file. The mutex is held, or nobody else knows j yet.
func (j *journal) rotate() error {
	create := func(name string) (*os.File, error) {
		return os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	}
	if j.sync {
		create = createFile // everybody waits for flushes anyway
	}
	f, err := create(j.files.name(j.next))
	if err != nil {
		return err
	}
	j.next++
	if old := j.active; old != nil && old.open == 0 {
		old.remove()
	}
	j.active = &segment{file: f}
	return nil
}

func (s *segment) remove() {
	s.file.Close()
	os.Remove(s.file.Name())
}

// open is how many intents are not done with.
func (j *journal) open() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.holders)
}

// close leaves the files with open intents for the next start.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	segments := map[*segment]bool{j.active: true}
	for _, s := range j.holders {
		segments[s] = true
	}
	var errs []error
	for s := range segments {
		if s.open == 0 {
			s.remove()
			continue
		}
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

// oldJournals is what earlier processes left.
type oldJournals struct {
	names   []string
	intents []tenancy.Intent
}

// readJournals reads all intents that earlier processes left beside a database.
func readJournals(path string) (*oldJournals, error) {
	names, err := intentFiles(path).files()
	if err != nil {
		return nil, err
	}
	old := &oldJournals{names: names}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		old.intents = appendIntents(old.intents, text)
	}
	return old, nil
}

// appendIntents reads records up to the end or the first one that is damaged.
func appendIntents(dst []tenancy.Intent, text []byte) []tenancy.Intent {
	for {
		payload, rest, ok := nextRecord(text)
		if !ok {
			return dst
		}
		var in tenancy.Intent
		if json.Unmarshal(payload, &in) != nil || in.ID == "" || in.Start.IsZero() {
			return dst
		}
		dst, text = append(dst, in), rest
	}
}

// remove deletes the files once their intents have rows.
func (o *oldJournals) remove() error {
	for _, name := range o.names {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}
