package authn

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Revocations are what a list of revoked credentials says: one a line, either
// the id of an API key or the id of any principal (key:…, jwt:…, mtls:…). What
// follows a space and a number sign is a remark, and so is a line that begins
// with one. A line that is neither is passed over, so that no mistake in the file
// can keep the rest of it from working.
type Revocations struct {
	keys       map[string]bool // by key id
	principals map[string]bool // by principal id, those of keys apart
	// Odd counts the lines that name nobody; the first of them is FirstOdd, from 1.
	Odd, FirstOdd int
}

// maxRevokedFile bounds the list: half a million ids.
const maxRevokedFile = 16 << 20

// ParseRevoked reads the text of a list.
func ParseRevoked(text []byte) *Revocations {
	r := &Revocations{keys: make(map[string]bool), principals: make(map[string]bool)}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		id := string(bytes.TrimSpace(line))
		if at := strings.Index(id, " #"); at >= 0 {
			id = strings.TrimSpace(id[:at])
		}
		if id == "" || id[0] == '#' || r.add(id) {
			continue
		}
		if r.Odd++; r.Odd == 1 {
			r.FirstOdd = n
		}
	}
	return r
}

func (r *Revocations) add(id string) bool {
	if key, ok := KeyIDOf(id); ok {
		r.keys[key] = true
		return true
	}
	if OtherPrincipal(id) {
		r.principals[id] = true
		return true
	}
	return false
}

// OtherPrincipal reports whether a text is the id of a principal that has no key,
// jwt:… or mtls:…, as a line of the list can hold it.
func OtherPrincipal(id string) bool {
	kind, rest, ok := strings.Cut(id, ":")
	return ok && rest != "" && (kind == "jwt" || kind == "mtls") && !strings.ContainsFunc(id, isControl) && !strings.Contains(id, " #") &&
		strings.TrimSpace(id) == id
}

// Key reports whether the key of that id is on the list.
func (r *Revocations) Key(id string) bool { return r.keys[id] }

func (r *Revocations) has(id string) bool { return r.keys[id] || r.principals[id] }

// Len counts who is on the list.
func (r *Revocations) Len() int { return len(r.keys) + len(r.principals) }

// Principal reports whether the principal of that id is on the list.
func (r *Revocations) Principal(id string) bool {
	if key, ok := strings.CutPrefix(id, "key:"); ok {
		return r.keys[key]
	}
	return r.principals[id]
}

// KeyIDOf returns the id of a key from what people call it by: the id, the
// principal's id, or the whole credential, whose secret it forgets.
func KeyIDOf(text string) (id string, ok bool) {
	id = strings.TrimPrefix(text, "key:")
	if rest, whole := strings.CutPrefix(id, keyPrefix); whole {
		id, _, _ = strings.Cut(rest, "_")
	}
	return id, validKeyID([]byte(id))
}

// LoadRevoked reads a list. A file that is not there revokes nobody.
func LoadRevoked(file string) (*Revocations, error) {
	text, err := readUpTo(file, maxRevokedFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the list of revoked keys: %w", err)
	}
	return ParseRevoked(text), nil
}

// Revoke adds a key, or a principal of another kind, to a list of revoked
// credentials and makes the list where there is none. The note stands beside it as
// a remark. It reports false if it was on the list. The list is on disk when Revoke
// returns.
func Revoke(file, id, note string, now time.Time) (added bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot add to the list of revoked keys: %w", err)
		}
	}()
	unlock, err := lockFolder(filepath.Dir(file))
	if err != nil {
		return false, err
	}
	defer unlock()
	before, err := readUpTo(file, maxRevokedFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		before = []byte("# Credentials that are refused at once: the id of a key, or of a principal, in each line.\n")
	case err != nil:
		return false, err
	case ParseRevoked(before).has(id):
		return false, nil
	}
	if n := len(before); n > 0 && before[n-1] != '\n' {
		before = append(before, '\n')
	}
	line := id + " # " + now.UTC().Format(time.RFC3339)
	if note = oneLine(note); note != "" {
		line += " " + note
	}
	return true, writeFile(file, append(before, line+"\n"...), 0o644)
}

// oneLine makes a note fit for a remark: no line breaks, no control characters.
func oneLine(note string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, note))
}

// writeFile replaces a file, or makes it with the given mode.
func writeFile(file string, text []byte, mode fs.FileMode) error {
	target, err := filepath.EvalSymlinks(file)
	if errors.Is(err, fs.ErrNotExist) {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		target = file
	} else if err != nil {
		return err
	}
	return replaceFile(target, text)
}
