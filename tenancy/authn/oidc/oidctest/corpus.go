package oidctest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Case is one token of the corpus and what must come of it.
type Case struct {
	// Name is file/case.
	Name  string
	Token string
	// Want is ok, or one of tenancy.AuthReasons.
	Want string
}

// Corpus are the keys that the cases are signed by. The issuer publishes those
// of Published, and is pinned to RS256, PS256, ES256 and EdDSA, with a skew of a
// minute and the audiences sluice and https://api.example.
type Corpus struct {
	Issuer string
	Now    time.Time
	keys   map[string]*Signer
}

// NewCorpus makes the keys of a corpus for an issuer.
func NewCorpus(t testing.TB, issuer string, now time.Time) *Corpus {
	t.Helper()
	c := &Corpus{Issuer: issuer, Now: now, keys: make(map[string]*Signer)}
	for name, alg := range map[string]string{"rsa": "RS256", "ps": "PS256", "ec": "ES256", "ed": "EdDSA", "p384": "ES384", "stranger": "RS256"} {
		c.keys[name] = NewSigner(t, alg, name)
	}
	return c
}

// Audiences and Algorithms are those of the corpus's issuer.
var (
	Audiences  = []string{"sluice", "https://api.example"}
	Algorithms = []string{"RS256", "PS256", "ES256", "EdDSA"}
)

// Published are the keys that the issuer publishes.
func (c *Corpus) Published() []*Signer {
	return []*Signer{c.keys["rsa"], c.keys["ps"], c.keys["ec"], c.keys["ed"], c.keys["p384"]}
}

// Load reads the cases of a folder. Each begins with "== name"; the lines after
// it are a field each, and lines that begin with # are for the reader:
//
//	key:    who signs; rsa if it is left out
//	alg:    by what; the key's own if it is left out
//	header: the header's text; a good one if it is left out
//	claims: the claims' text; good ones if it is left out
//	set:    a member of the good claims, as name=JSON; drop: takes one out
//	make:   what is done to the token then, see mutations
//	want:   ok, or the reason
//
// In a text $ISS is the issuer, $NOW the time in seconds, as in $NOW-61, and
// $X(n) is the letter x n times.
func (c *Corpus) Load(t testing.TB, dir string) (cases []Case) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		base := strings.TrimSuffix(filepath.Base(file), ".txt")
		for _, block := range strings.Split("\n"+string(text), "\n== ")[1:] {
			name, body, _ := strings.Cut(block, "\n")
			out, err := c.read(body)
			if err != nil {
				t.Fatalf("%s: %s: %v", file, name, err)
			}
			out.Name = base + "/" + name
			cases = append(cases, out)
		}
	}
	return cases
}

// draft is a case as it is read.
type draft struct {
	key, alg, header, claims, make, want string
	good                                 map[string]string // members of the claims, as JSON
}

func (c *Corpus) read(body string) (Case, error) {
	d := draft{key: "rsa", good: map[string]string{
		"iss": strconv.Quote(c.Issuer), "sub": `"u1"`, "aud": `"sluice"`, "iat": "$NOW", "exp": "$NOW+300",
	}}
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		field := map[string]*string{"key": &d.key, "alg": &d.alg, "header": &d.header, "claims": &d.claims, "make": &d.make, "want": &d.want}[name]
		switch {
		case ok && field != nil:
			*field = value
		case name == "drop":
			delete(d.good, value)
		case name == "set":
			member, json, _ := strings.Cut(value, "=")
			d.good[member] = json
		default:
			return Case{}, fmt.Errorf("a line that nothing is made of: %q", line)
		}
	}
	if d.want == "" {
		return Case{}, fmt.Errorf("it has no answer")
	}
	token, err := c.build(&d)
	return Case{Token: token, Want: d.want}, err
}

var (
	timePattern = regexp.MustCompile(`\$NOW([+-]\d+)?`)
	longPattern = regexp.MustCompile(`\$X\((\d+)\)`)
)

func (c *Corpus) expand(text string) string {
	text = strings.ReplaceAll(text, "$ISS", c.Issuer)
	text = timePattern.ReplaceAllStringFunc(text, func(m string) string {
		n, _ := strconv.ParseInt(strings.TrimPrefix(m[len("$NOW"):], "+"), 10, 64)
		return strconv.FormatInt(c.Now.Unix()+n, 10)
	})
	return longPattern.ReplaceAllStringFunc(text, func(m string) string {
		n, _ := strconv.Atoi(m[3 : len(m)-1])
		return strings.Repeat("x", n)
	})
}

func (c *Corpus) build(d *draft) (string, error) {
	s := c.keys[d.key]
	if s == nil {
		return "", fmt.Errorf("there is no key %q", d.key)
	}
	if d.alg == "" {
		d.alg = s.Alg
	}
	if d.header == "" {
		d.header = fmt.Sprintf(`{"alg":%q,"kid":%q}`, d.alg, s.Kid)
	}
	if d.claims == "" {
		var members []string
		for name, json := range d.good {
			members = append(members, strconv.Quote(name)+":"+json)
		}
		slices.Sort(members)
		d.claims = "{" + strings.Join(members, ",") + "}"
	}
	head, body := b64([]byte(c.expand(d.header))), b64([]byte(c.expand(d.claims)))
	text := head + "." + body
	name, arg, _ := strings.Cut(d.make, " ")
	if sign, ok := secretSigners[name]; ok {
		return text + "." + b64(sign(s, text)), nil
	}
	sig := b64(s.Signature(d.alg, text))
	if name == "" {
		return text + "." + sig, nil
	}
	mutate, ok := mutations[name]
	if !ok {
		return "", fmt.Errorf("nothing is known of make: %q", d.make)
	}
	return mutate(head, body, sig, c.expand(arg)), nil
}

// secretSigners make signatures that are none of the key's.
var secretSigners = map[string]func(s *Signer, text string) []byte{
	"hs256-pem":   func(s *Signer, text string) []byte { return hs256(s.publicForms()["pem"], text) },
	"hs256-der":   func(s *Signer, text string) []byte { return hs256(s.publicForms()["der"], text) },
	"hs256-jwk":   func(s *Signer, text string) []byte { return hs256(s.publicForms()["jwk"], text) },
	"hs256-empty": func(_ *Signer, text string) []byte { return hs256(nil, text) },
	"zeros":       func(*Signer, string) []byte { return make([]byte, 64) },
	"der":         func(s *Signer, text string) []byte { return s.derSignature(text) },
	"other-text":  func(s *Signer, text string) []byte { return s.Signature(s.Alg, text+"x") },
}

// mutations change the parts of a good token.
var mutations = map[string]func(head, body, sig, arg string) string{
	"parts":        func(_, _, _, arg string) string { return arg },
	"no-signature": func(h, b, _, _ string) string { return h + "." + b + "." },
	"two-parts":    func(h, b, _, _ string) string { return h + "." + b },
	"four-parts":   func(h, b, s, _ string) string { return h + "." + b + "." + s + "." + s },
	"five-parts":   func(h, b, s, _ string) string { return strings.Join([]string{h, b, s, s, s}, ".") },
	"no-header":    func(_, b, s, _ string) string { return "." + b + "." + s },
	"no-claims":    func(h, _, s, _ string) string { return h + ".." + s },
	"padding":      func(h, b, s, _ string) string { return h + "." + b + "." + s + "==" },
	"standard":     func(h, b, s, _ string) string { return h + "." + b + "." + "+/" + s[2:] },
	"line-break":   func(h, b, s, _ string) string { return h + "." + b[:4] + "\n" + b[4:] + "." + s },
	"space":        func(h, b, s, _ string) string { return h + "." + b + "." + s + " " },
	"stray-bits":   func(h, b, s, _ string) string { return h + "." + b + "." + s[:len(s)-1] + stray(s[len(s)-1]) },
	"cut":          func(h, b, s, _ string) string { return h + "." + b + "." + s[:len(s)-len(s)%4-4] },
	"longer":       func(h, b, s, _ string) string { return h + "." + b + "." + s + "AAAA" },
	"other-claims": func(h, _, s, arg string) string { return h + "." + b64([]byte(arg)) + "." + s },
	"other-header": func(_, b, s, arg string) string { return b64([]byte(arg)) + "." + b + "." + s },
	"json": func(h, b, s, _ string) string {
		return `{"payload":"` + b + `","protected":"` + h + `","signature":"` + s + `"}`
	},
}

// stray is another letter that decodes to the same byte at the end of a text.
func stray(last byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(alphabet[strings.IndexByte(alphabet, last)^1])
}
