// Package secretstest finds credentials where none may be: in logs, metrics,
// errors, ledgers and whatever else a test has collected.
//
// A credential is found in pieces too, and in the forms that programs give to
// bytes without meaning to: base64 at any offset, hexadecimal, percent and JSON
// escapes, other case, and Go's way to print a slice of bytes.
package secretstest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Lengths of the pieces by which each form is found: short enough that a part of
// a credential gives it away, and too long to be there by chance.
const (
	rawPiece    = 12
	base64Piece = 16
	hexPiece    = 20
	escapePiece = 24
)

// minSecret is the length below which a credential can't be told from a word.
const minSecret = 16

// Secrets are credentials that must not show. The zero value has none. Safe for
// concurrent use.
type Secrets struct {
	mu sync.Mutex // protects what follows
	// pieces are the parts of all forms, by their length and then by themselves.
	pieces map[int]map[string]piece
	// starts tells quickly that no piece begins with four bytes.
	starts [1 << 16]bool
	shown  map[string]string // the name of each secret by its text
	logs   []*keptLog
}

type piece struct{ secret, form string }

// Add has a credential looked for. It panics if that is too short to be one.
func (s *Secrets) Add(name, secret string) {
	if len(secret) < minSecret {
		panic(fmt.Sprintf("BUG: secretstest: %s has %d bytes, a credential has at least %d", name, len(secret), minSecret))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pieces == nil {
		s.pieces, s.shown = make(map[int]map[string]piece), make(map[string]string)
	}
	if _, ok := s.shown[secret]; ok {
		return
	}
	s.shown[secret] = name
	s.addLocked(name, "as it is", rawPiece, secret)
	s.addLocked(name, "in lower case", rawPiece, strings.ToLower(secret))
	s.addLocked(name, "in upper case", rawPiece, strings.ToUpper(secret))
	for offset := range 3 {
		// What stands before and after it shares the outer characters.
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := enc.EncodeToString([]byte(strings.Repeat("\x00", offset) + secret))
			first := (8*offset + 5) / 6
			last := 8 * (offset + len(secret)) / 6
			s.addLocked(name, fmt.Sprintf("in base64 at offset %d", offset), base64Piece, text[first:last])
		}
	}
	x := hex.EncodeToString([]byte(secret))
	s.addLocked(name, "in hexadecimal", hexPiece, x)
	s.addLocked(name, "in hexadecimal", hexPiece, strings.ToUpper(x))
	for _, form := range []struct{ name, format string }{
		{"in percent escapes", "%%%02X"}, {"in percent escapes", "%%%02x"},
		{"in JSON escapes", `\u%04x`}, {"in JSON escapes", `\u%04X`}, {"in escapes", `\x%02x`},
		{"as a slice of bytes", "%d "}, {"as a list of bytes", "%d,"}, {"as Go's bytes", "0x%02x, "},
	} {
		var b strings.Builder
		for i := range len(secret) {
			fmt.Fprintf(&b, form.format, secret[i])
		}
		s.addLocked(name, form.name, escapePiece, b.String())
	}
	for _, quoted := range []string{jsonText(secret), strings.Trim(fmt.Sprintf("%q", secret), `"`), url.QueryEscape(secret), url.PathEscape(secret)} {
		if quoted != secret {
			s.addLocked(name, "quoted", rawPiece, quoted)
		}
	}
}

func jsonText(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("BUG: " + err.Error()) // a string can always be encoded
	}
	return strings.Trim(string(b), `"`)
}

// addLocked notes every piece of a form. The mutex is held.
func (s *Secrets) addLocked(secret, form string, size int, text string) {
	if s.pieces[size] == nil {
		s.pieces[size] = make(map[string]piece)
	}
	for i := range len(text) - size + 1 {
		part := text[i : i+size]
		if strings.Count(part, part[:1]) == len(part) {
			continue // a run of one byte is nobody's secret
		}
		if _, ok := s.pieces[size][part]; !ok {
			s.pieces[size][part] = piece{secret, form}
		}
		s.starts[start(text[i:])] = true
	}
}

// start is a hash of the first four bytes.
func start[T string | []byte](b T) uint16 {
	return uint16((uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24) * 2654435761 >> 16)
}

// Find returns which secrets are in a text and in what form, each once, in
// sentences that do not show them.
func (s *Secrets) Find(text []byte) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range max(0, len(text)-rawPiece+1) {
		if !s.starts[start(text[i:])] {
			continue
		}
		for size, pieces := range s.pieces {
			if i+size > len(text) {
				continue
			}
			p, ok := pieces[string(text[i:i+size])]
			if !ok {
				continue
			}
			if sentence := fmt.Sprintf("%s is told, %s", p.secret, p.form); !slices.Contains(found, sentence) {
				found = append(found, sentence)
			}
		}
	}
	return found
}

// Log returns a log that passes on to next what next wants, and keeps all that
// anybody has to say, at every level, for the end of the test: then it fails the
// test if a secret is in it. Secrets may be added until then.
func (s *Secrets) Log(t testing.TB, next *slog.Logger) *slog.Logger {
	kept := &keptLog{}
	s.mu.Lock()
	s.logs = append(s.logs, kept)
	s.mu.Unlock()
	t.Cleanup(func() {
		for _, found := range s.Find(kept.bytes()) {
			t.Errorf("the log: %s", found)
		}
	})
	all := slog.NewTextHandler(kept, &slog.HandlerOptions{Level: slog.LevelDebug - 100, AddSource: true})
	return slog.New(&teeHandler{all, next.Handler()})
}

// Held is the memory that the logs of Log take, in bytes, for tests that measure
// their own.
func (s *Secrets) Held() (size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.logs {
		size += l.held()
	}
	return size
}

// keptLog is what was logged.
type keptLog struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *keptLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *keptLog) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Cap()
}

func (l *keptLog) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.buf.Bytes())
}

// teeHandler gives all records to one handler, and those that it wants to another.
type teeHandler struct{ all, next slog.Handler }

// Enabled implements slog.Handler.
func (h *teeHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *teeHandler) Handle(ctx context.Context, r slog.Record) error {
	err := h.all.Handle(ctx, r.Clone())
	if h.next.Enabled(ctx, r.Level) {
		err = errors.Join(err, h.next.Handle(ctx, r))
	}
	return err
}

// WithAttrs implements slog.Handler.
func (h *teeHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &teeHandler{h.all.WithAttrs(attrs), h.next.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *teeHandler) WithGroup(name string) slog.Handler {
	return &teeHandler{h.all.WithGroup(name), h.next.WithGroup(name)}
}
