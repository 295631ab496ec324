package ledger

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/sluicegate/sluice/tenancy"
)

// journal keeps the intents of the requests in flight in files beside the
// database, one write call each and no flush: what a process has written
// survives its death, and only a loss of power can take it. An intent is done
// with when its row is durable; the row says so, the journal need not. A file is
// emptied or removed once all its intents are done with.
//
// A record is its length and the CRC-32C of its payload, four bytes each, little
// endian, and the payload, a tenancy.Intent as JSON. A record cut short by the
// end of the process belongs to a Begin that did not return.
type journal struct {
	path string // of the database

	mu      sync.Mutex // protects everything below
	next    int        // number of the next file
	active  *segment
	holders map[string]*segment // by the id of each open intent
	buf     bytes.Buffer
}

// segment is one file of the journal.
type segment struct {
	file *os.File
	size int64
	open int // intents in it that are not done with
}

const (
	recordHeader = 8
	// segmentSize is when a new file is begun, so that one long request does
	// not keep much more than itself.
	segmentSize = 1 << 20
	// maxRecord is far beyond any intent; a larger length is a damaged file.
	maxRecord = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// newJournal begins a new file, after those there are.
func newJournal(path string) (*journal, error) {
	names, err := journalFiles(path)
	if err != nil {
		return nil, err
	}
	j := &journal{path: path, next: 1, holders: make(map[string]*segment)}
	if n := len(names); n > 0 {
		j.next = journalNumber(path, names[n-1]) + 1
	}
	if err := j.rotate(); err != nil {
		return nil, err
	}
	return j, nil
}

// begin writes an intent.
func (j *journal) begin(in *tenancy.Intent) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, dup := j.holders[in.ID]; dup {
		return errors.New("it was announced before")
	}
	if j.active.size >= segmentSize {
		if err := j.rotate(); err != nil {
			return err
		}
	}
	j.buf.Reset()
	j.buf.Write(make([]byte, recordHeader))
	if err := json.NewEncoder(&j.buf).Encode(in); err != nil {
		return err
	}
	record := j.buf.Bytes()
	binary.LittleEndian.PutUint32(record, uint32(len(record)-recordHeader))
	binary.LittleEndian.PutUint32(record[4:], crc32.Checksum(record[recordHeader:], castagnoli))
	// Written at an offset of our own: after a write that failed halfway, the
	// next record replaces the half one.
	if _, err := j.active.file.WriteAt(record, j.active.size); err != nil {
		return err
	}
	j.active.size += int64(len(record))
	j.active.open++
	j.holders[in.ID] = j.active
	return nil
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
	// failure costs space alone, since its intents all have rows.
	if s.size > segmentSize/16 && s.file.Truncate(0) == nil {
		s.size = 0
	}
}

// rotate begins a new file. The mutex is held, or nobody else knows j yet.
func (j *journal) rotate() error {
	f, err := os.OpenFile(journalName(j.path, j.next), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
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
	names, err := journalFiles(path)
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
	r := bytes.NewReader(text)
	var header [recordHeader]byte
	for {
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return dst
		}
		size := binary.LittleEndian.Uint32(header[:])
		if size > maxRecord || int(size) > r.Len() {
			return dst
		}
		payload := make([]byte, size)
		_, _ = io.ReadFull(r, payload)
		var in tenancy.Intent
		if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(header[4:]) ||
			json.Unmarshal(payload, &in) != nil || in.ID == "" || in.Start.IsZero() {
			return dst
		}
		dst = append(dst, in)
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

func journalName(path string, n int) string { return fmt.Sprintf("%s-intents-%08d", path, n) }

// journalNumber is the number in the name of a journal file, 0 for another file.
func journalNumber(path, name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, path+"-intents-"))
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// journalFiles lists the journal's files, oldest first.
func journalFiles(path string) ([]string, error) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	prefix := filepath.Base(path) + "-intents-"
	for _, e := range entries {
		if name := strings.TrimSuffix(path, filepath.Base(path)) + e.Name(); strings.HasPrefix(e.Name(), prefix) && journalNumber(path, name) > 0 {
			names = append(names, name)
		}
	}
	sort.Slice(names, func(a, b int) bool { return journalNumber(path, names[a]) < journalNumber(path, names[b]) })
	return names, nil
}
