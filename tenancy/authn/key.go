package authn

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"
)

// Shape of a credential: slk_<id>_<secret>. Ids have no underscore, so the
// first one after the prefix ends the id, whatever the secret holds.
const (
	keyPrefix = "slk_"
	maxKeyID  = 32
	// secretBytes are random; in base64url without padding they make secretLen
	// characters.
	secretBytes = 32
	secretLen   = 43
	// newIDLen characters of idAlphabet are 60 random bits.
	newIDLen   = 12
	idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"
)

// Record is what a tenants file keeps of one API key.
type Record struct {
	// ID is the public part: 1 to 32 lower-case letters and digits.
	ID string
	// SHA256 is the lower-case hex digest of the secret's text, the part of the
	// key after its second underscore.
	SHA256 string
	// Name says what the key is for; it becomes the principal's subject.
	Name string
	// Groups, Scopes and Claims are granted to whoever holds the key. Claims
	// are string, bool, int64, float64, or []any of those.
	Groups, Scopes []string
	Claims         map[string]any
	// Models are globs of the models that the key is for, as those of a tenant,
	// and Operations the operations; empty means whatever the tenant may do.
	Models, Operations []string
	// Created is informative; Expires is the first instant at which the key no
	// longer works, zero for never.
	Created, Expires time.Time
	// RotatedFrom is the id of the key that this one replaces, or empty.
	RotatedFrom string
	// Disabled revokes the key.
	Disabled bool
}

// KeyInfo is a record and the tenant it belongs to.
type KeyInfo struct {
	Tenant string
	Record
}

// Key is a new API key: the one moment at which its secret is known. However it
// is printed or logged, only Reveal shows the secret.
type Key struct {
	// Record holds ID and SHA256; the caller fills in the rest.
	Record
	secret string
}

// NewKey makes a key from the system's random source.
func NewKey() (Key, error) {
	var raw [secretBytes + newIDLen]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return Key{}, fmt.Errorf("cannot make a key: %w", err)
	}
	id := raw[secretBytes:]
	for i, b := range id {
		id[i] = idAlphabet[int(b)%len(idAlphabet)]
	}
	k := Key{secret: base64.RawURLEncoding.EncodeToString(raw[:secretBytes])}
	sum := sha256.Sum256([]byte(k.secret))
	k.ID, k.SHA256 = string(id), hex.EncodeToString(sum[:])
	return k, nil
}

// Reveal returns the credential to hand to the key's owner, slk_<id>_<secret>.
// It is shown once and kept nowhere.
func (k *Key) Reveal() string { return keyPrefix + k.ID + "_" + k.secret }

// String is the key without its secret.
func (k Key) String() string { return keyPrefix + k.ID + "_(secret)" }

// Format prints String under every verb, so that %+v does not show the secret.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// LogValue keeps the secret out of logs.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// parseCredential splits a credential into the parts of an API key. The parts
// are views into it.
func parseCredential(credential []byte) (id, secret []byte, ok bool) {
	rest, ok := bytes.CutPrefix(credential, []byte(keyPrefix))
	if !ok {
		return nil, nil, false
	}
	id, secret, ok = bytes.Cut(rest, []byte("_"))
	if !ok || !validKeyID(id) || len(secret) != secretLen {
		return nil, nil, false
	}
	for _, c := range secret {
		if !isAlnum(c) && c != '-' && c != '_' {
			return nil, nil, false
		}
	}
	return id, secret, true
}

func validKeyID(id []byte) bool {
	if len(id) == 0 || len(id) > maxKeyID {
		return false
	}
	for _, c := range id {
		if !isAlnum(c) || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// AppendYAML appends the record as the item of a `keys:` list, each line
// indented by the given number of spaces.
func (r *Record) AppendYAML(dst []byte, indent int) []byte {
	pad := bytes.Repeat([]byte(" "), indent)
	lead := "- "
	field := func(name string, value any) {
		dst = append(append(append(dst, pad...), lead...), name...)
		dst = append(append(append(dst, ": "...), yamlValue(value)...), '\n')
		lead = "  "
	}
	field("id", r.ID)
	field("sha256", r.SHA256)
	if r.Name != "" {
		field("name", r.Name)
	}
	if len(r.Groups) > 0 {
		field("groups", r.Groups)
	}
	if len(r.Scopes) > 0 {
		field("scopes", r.Scopes)
	}
	if len(r.Models) > 0 {
		field("models", r.Models)
	}
	if len(r.Operations) > 0 {
		field("operations", r.Operations)
	}
	if len(r.Claims) > 0 {
		field("claims", r.Claims)
	}
	if !r.Created.IsZero() {
		field("created", r.Created.UTC().Truncate(time.Second).Format(time.RFC3339))
	}
	if !r.Expires.IsZero() {
		field("expires", r.Expires.UTC().Format(time.RFC3339Nano))
	}
	if r.RotatedFrom != "" {
		field("rotatedFrom", r.RotatedFrom)
	}
	if r.Disabled {
		field("disabled", true)
	}
	return dst
}

// yamlValue is a value as one line of YAML: JSON, which YAML contains, with a
// space after each colon and comma of the top level for the reader's sake.
func yamlValue(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("BUG: a key record holds a value without a JSON form")
	}
	return slices.Clone(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
}
