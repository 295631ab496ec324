package secretstest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
)

const (
	secret  = "q7T-x_0vPq2LmZ81RtYw4NcBv6HsKd9JfGa3UeXo5Wi"
	strange = "pass\"w\\rd<&>\u00e9\x01 with blanks and more"
)

func TestFind(t *testing.T) {
	var s Secrets
	s.Add("the key", secret)
	s.Add("the password", strange)
	f := func(text string, want ...string) {
		t.Helper()
		for _, around := range []string{"%s", "a line before\n%s and after", "x%s"} {
			if got := s.Find(fmt.Appendf(nil, around, text)); !slices.Equal(got, want) {
				t.Errorf("in %q: %q, want %q", text, got, want)
			}
		}
	}
	key := func(form string) string { return "the key is told, " + form }
	f("nothing of the kind, q7T-x_0vPq or so, AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA 0000000000000000000000000000")
	f(secret, key("as it is"))
	f(secret[20:34], key("as it is"))
	f(secret[:12], key("as it is"))
	f(secret[:11])
	f(strings.ToLower(secret), key("in lower case"))
	f(strings.ToUpper(secret), key("in upper case"))
	for i, before := range []string{"", "a", "ab"} {
		f(base64.StdEncoding.EncodeToString([]byte(before+secret+"and more")), key(fmt.Sprintf("in base64 at offset %d", i)))
		f(base64.URLEncoding.EncodeToString([]byte("Bearer: "+before+secret)), key(fmt.Sprintf("in base64 at offset %d", (i+2)%3)))
	}
	f(fmt.Sprintf("%x", secret), key("in hexadecimal"))
	f(fmt.Sprintf("%X", secret), key("in hexadecimal"))
	f(fmt.Sprint([]byte(secret)), key("as a slice of bytes"))
	f(fmt.Sprintf("%#v", []byte(secret)), key("as Go's bytes"))
	list, err := json.Marshal(slices.Collect(func(yield func(int) bool) {
		for _, b := range []byte(secret) {
			if !yield(int(b)) {
				return
			}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	f(string(list), key("as a list of bytes"))
	var percent, unicode strings.Builder
	for _, b := range []byte(secret) {
		fmt.Fprintf(&percent, "%%%02X", b)
		fmt.Fprintf(&unicode, `\u%04x`, b)
	}
	f(percent.String(), key("in percent escapes"))
	f(unicode.String(), key("in JSON escapes"))
	quoted, err := json.Marshal(strange)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strange, string(quoted), fmt.Sprintf("%q", strange), url.QueryEscape(strange)} {
		if len(s.Find([]byte(text))) == 0 {
			t.Errorf("the password is not found in %s", text)
		}
	}
}

func TestFindNothing(t *testing.T) {
	var none Secrets
	for _, text := range []string{"", "short", secret} {
		if got := none.Find([]byte(text)); got != nil {
			t.Errorf("without secrets there is %q in %q", got, text)
		}
	}
}

func TestAddRefusesWords(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a word is taken for a credential")
		}
	}()
	new(Secrets).Add("a word", "fifteen letters")
}

// recording notes what a test would fail for.
type recording struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (r *recording) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recording) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// What a log's reader would not see is looked at too.
func TestLog(t *testing.T) {
	for _, told := range []bool{false, true} {
		var s Secrets
		var shown strings.Builder
		r := &recording{TB: t}
		log := s.Log(r, slog.New(slog.NewTextHandler(&shown, &slog.HandlerOptions{Level: slog.LevelWarn})))
		s.Add("the key", secret)
		log.Warn("a warning", "who", "me")
		if told {
			log.WithGroup("g").With("a", 1).Debug("a detail", "key", "Bearer "+secret)
		}
		for _, f := range r.cleanups {
			f()
		}
		if strings.Contains(shown.String(), "a detail") || !strings.Contains(shown.String(), "a warning") {
			t.Errorf("passed on: %s", shown.String())
		}
		if want := []string{"the log: the key is told, as it is"}; told != slices.Equal(r.errors, want) || !told && r.errors != nil {
			t.Errorf("told %v: %q", told, r.errors)
		}
	}
}
