package ledger

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// The journal and the spool are files of records. A record is its length and the
// CRC-32C of its payload, four bytes each, little endian, and the payload, which
// is JSON.

const (
	recordHeader = 8
	// maxRecord is far beyond any intent or row; a larger length is a damaged file.
	maxRecord = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writeRecord appends one record.
func writeRecord(buf *bytes.Buffer, payload any) error {
	start := buf.Len()
	buf.Write(make([]byte, recordHeader))
	if err := json.NewEncoder(buf).Encode(payload); err != nil {
		buf.Truncate(start)
		return err
	}
	record := buf.Bytes()[start:]
	binary.LittleEndian.PutUint32(record, uint32(len(record)-recordHeader))
	binary.LittleEndian.PutUint32(record[4:], crc32.Checksum(record[recordHeader:], castagnoli))
	return nil
}

// nextRecord returns the payload of the first record and what follows it; ok is
// false at the end and at a record that is cut short or damaged.
func nextRecord(text []byte) (payload, rest []byte, ok bool) {
	if len(text) < recordHeader {
		return nil, text, false
	}
	size := binary.LittleEndian.Uint32(text)
	if size > maxRecord || int(size) > len(text)-recordHeader {
		return nil, text, false
	}
	payload = text[recordHeader : recordHeader+int(size)]
	if crc32.Checksum(payload, castagnoli) != binary.LittleEndian.Uint32(text[4:]) {
		return nil, text, false
	}
	return payload, text[recordHeader+int(size):], true
}

// numbered names the files of one kind beside a database: path-kind-00000001.
type numbered struct{ path, kind string }

func (n numbered) name(i int) string {
	return fmt.Sprintf("%s-%s-%08d", n.path, n.kind, i)
}

// number is that of a file's name, 0 for another file.
func (n numbered) number(name string) int {
	digits, ok := strings.CutPrefix(name, n.path+"-"+n.kind+"-")
	i, err := strconv.Atoi(digits)
	if !ok || err != nil || i < 1 {
		return 0
	}
	return i
}

// files lists the files there are, oldest first.
func (n numbered) files() ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(n.path))
	if err != nil {
		return nil, err
	}
	var names []string
	folder := strings.TrimSuffix(n.path, filepath.Base(n.path))
	for _, e := range entries {
		if name := folder + e.Name(); n.number(name) > 0 {
			names = append(names, name)
		}
	}
	sort.Slice(names, func(a, b int) bool { return n.number(names[a]) < n.number(names[b]) })
	return names, nil
}

// createFile makes a new file whose name survives a loss of power too.
func createFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syncFolder(name); err != nil {
		f.Close()
		os.Remove(name)
		return nil, err
	}
	return f, nil
}

// syncFolder makes the names in a file's folder durable.
func syncFolder(name string) error {
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
