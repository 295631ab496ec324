package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/sluicegate/sluice/tenancy"
)

// errSpoolFull: the spool has reached its limit.
var errSpoolFull = errors.New("the spool is full")

// spool keeps rows durable while the database can't take them: files beside it,
// each a sequence of records. append returns when its rows are on disk. Rows
// are given back in the order they came; since a row is stored once for each id,
// giving back one that has been stored is harmless, and so nothing notes how far
// a file has been read. One goroutine uses it; the figures may be read by any.
type spool struct {
	names numbered
	limit int64
	// damaged is told of a file that can't be read from some byte on, and is kept
	// under another name.
	damaged func(name string, at int64)
	next    int
	files   []*spoolFile // oldest first
	// active is the last of files once it is being written to.
	active *os.File
	buf    bytes.Buffer
	ends   []int64 // of the rows in buf
	// keep says that rows come all the time: the file being written to stays when
	// all of it is stored, and rows are remembered, so that they need not be read.
	keep bool
	// chunk is what the last call of first gave: so many rows, so many bytes.
	chunkRows int
	chunkEnd  int64

	rows, bytes atomic.Int64
}

// spoolFile is one file of the spool.
type spoolFile struct {
	name string
	size int64 // of its whole records
	rows int64 // that have not been stored
	read int64 // up to where they have been stored
	// recent are the rows that have not been stored: all of them, or none.
	recent []recentRow
}

// recentRow is a row of a file with where it ends.
type recentRow struct {
	row *tenancy.Row
	end int64
}

// maxRecent bounds the rows of a file that are remembered.
const maxRecent = 8192

// spoolFileSize is when a new file is begun: files are removed as a whole.
const spoolFileSize = 4 << 20

func spoolFiles(path string) numbered { return numbered{path, "spool"} }

// openSpool finds what earlier processes left, and the ids of the rows in it. A
// file that is damaged, or ends in the middle of a row, is kept under another
// name: its whole rows up to there are taken over.
func openSpool(path string, limit int64, damaged func(name string, at int64)) (*spool, map[string]bool, error) {
	s := &spool{names: spoolFiles(path), limit: limit, damaged: damaged, next: 1}
	names, err := s.names.files()
	if err != nil {
		return nil, nil, err
	}
	ids := make(map[string]bool)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		s.next = s.names.number(name) + 1
		rows, end := parseRows(text, len(text))
		for _, row := range rows {
			ids[row.ID] = true
		}
		if end < len(text) {
			if err := setAside(name, text); err != nil {
				return nil, nil, err
			}
			damaged(name, int64(end))
		}
		s.files = append(s.files, &spoolFile{name: name, size: int64(end), rows: int64(len(rows))})
		s.rows.Add(int64(len(rows)))
		s.bytes.Add(int64(end))
	}
	return s, ids, nil
}

// whole reports whether all files of a spool can be read to their ends.
func whole(names []string) bool {
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return false
		}
		if _, end := parseRows(text, len(text)); end < len(text) {
			return false
		}
	}
	return true
}

// setAside copies a damaged file to a name under which it is not read again.
func setAside(name string, text []byte) error {
	f, err := os.OpenFile(name+".damaged", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// parseRows reads up to n rows, and returns where it ended.
func parseRows(text []byte, n int) (rows []*tenancy.Row, end int) {
	left := text
	for len(rows) < n {
		payload, rest, ok := nextRecord(left)
		if !ok {
			break
		}
		row := new(tenancy.Row)
		if json.Unmarshal(payload, row) != nil || row.Check() != nil {
			break
		}
		rows, left = append(rows, row), rest
	}
	return rows, len(text) - len(left)
}

// append makes rows durable, all or none. With keep they must not change any more.
func (s *spool) append(rows []*tenancy.Row) error {
	if s.limit < 0 {
		return errors.New("there is no spool")
	}
	s.buf.Reset()
	s.ends = s.ends[:0]
	for _, row := range rows {
		if err := writeRecord(&s.buf, row); err != nil {
			return err
		}
		s.ends = append(s.ends, int64(s.buf.Len()))
	}
	if s.bytes.Load()+int64(s.buf.Len()) > s.limit {
		return fmt.Errorf("%w: %d bytes of %d are used", errSpoolFull, s.bytes.Load(), s.limit)
	}
	if err := s.rotate(); err != nil {
		return err
	}
	file := s.files[len(s.files)-1]
	_, err := s.active.WriteAt(s.buf.Bytes(), file.size)
	if err == nil {
		err = s.active.Sync()
	}
	if err != nil {
		// What may be there is not counted and is overwritten by the next rows; a
		// file whose flush has failed is not trusted with them.
		_ = s.active.Truncate(file.size)
		s.retire()
		return err
	}
	s.remember(file, rows)
	file.size += int64(s.buf.Len())
	file.rows += int64(len(rows))
	s.rows.Add(int64(len(rows)))
	s.bytes.Add(int64(s.buf.Len()))
	return nil
}

// remember keeps rows that have just been written to the end of a file.
func (s *spool) remember(file *spoolFile, rows []*tenancy.Row) {
	if !s.keep || int64(len(file.recent)) != file.rows || len(file.recent)+len(rows) > maxRecent {
		file.recent = nil
		return
	}
	for i, row := range rows {
		file.recent = append(file.recent, recentRow{row, file.size + s.ends[i]})
	}
}

// rotate sees to it that there is a file to write to.
func (s *spool) rotate() error {
	if s.active != nil && s.files[len(s.files)-1].size < spoolFileSize {
		return nil
	}
	s.retire()
	f, err := createFile(s.names.name(s.next))
	if err != nil {
		return err
	}
	s.next++
	s.active = f
	s.files = append(s.files, &spoolFile{name: f.Name()})
	return nil
}

// retire ends the writing to the last file.
func (s *spool) retire() {
	if s.active != nil {
		s.active.Close()
		s.active = nil
	}
}

// first returns the next rows to store, at most n and of one file; none if the
// spool is empty. stored tells that they are.
func (s *spool) first(n int) ([]*tenancy.Row, error) {
	for {
		if err := s.dropRead(); err != nil || len(s.files) == 0 {
			return nil, err
		}
		file := s.files[0]
		if file.read == file.size {
			return nil, nil // it is kept for what comes
		}
		if rows := file.remembered(n); len(rows) > 0 {
			s.chunkRows, s.chunkEnd = len(rows), file.recent[len(rows)-1].end
			return rows, nil
		}
		text, err := file.unread()
		if err != nil {
			return nil, err
		}
		if rows, end := parseRows(text, n); len(rows) > 0 {
			s.chunkRows, s.chunkEnd = len(rows), file.read+int64(end)
			return rows, nil
		}
		// What has been written whole has changed since.
		if err := setAside(file.name, text); err != nil {
			return nil, err
		}
		s.damaged(file.name, file.read)
		s.rows.Add(-file.rows)
		s.bytes.Add(file.read - file.size)
		file.rows, file.read = 0, file.size
	}
}

// remembered are the next rows of a file, at most n, if they need not be read.
func (f *spoolFile) remembered(n int) []*tenancy.Row {
	rows := make([]*tenancy.Row, min(n, len(f.recent)))
	for i := range rows {
		rows[i] = f.recent[i].row
	}
	return rows
}

// unread is what of a file has not been stored.
func (f *spoolFile) unread() ([]byte, error) {
	file, err := os.Open(f.name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text := make([]byte, f.size-f.read)
	_, err = file.ReadAt(text, f.read)
	return text, err
}

// stored tells that the rows that first gave are in the database.
func (s *spool) stored() error {
	file := s.files[0]
	s.rows.Add(-int64(s.chunkRows))
	s.bytes.Add(file.read - s.chunkEnd)
	file.rows -= int64(s.chunkRows)
	file.read = s.chunkEnd
	if len(file.recent) > 0 {
		left := copy(file.recent, file.recent[s.chunkRows:])
		clear(file.recent[left:])
		file.recent = file.recent[:left]
	}
	return s.dropRead()
}

// dropRead removes files that have been read to the end.
func (s *spool) dropRead() error {
	for len(s.files) > 0 && s.files[0].read == s.files[0].size {
		if len(s.files) == 1 && s.keep && s.active != nil {
			return nil
		}
		if len(s.files) == 1 {
			s.retire()
		}
		if err := os.Remove(s.files[0].name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		s.files = s.files[1:]
	}
	return nil
}

func (s *spool) close() error {
	s.retire()
	return s.dropRead()
}
