package authn

import "time"

// Record is what a tenants file keeps of one API key.
type Record struct {
	// ID is the public part: 1 to 32 lower-case letters and digits.
	ID string
	// SHA256 is the lower-case hex digest of the secret's text, the part of the
	// key after its second underscore.
	SHA256 string
	// Name says what the key is for; it becomes the principal's subject.
	Name string
	// Groups, Scopes and Claims are granted to whoever holds the key.
	Groups, Scopes []string
	Claims         map[string]any
	// Created is informative; Expires is the first instant at which the key no
	// longer works, zero for never.
	Created, Expires time.Time
	// Disabled revokes the key.
	Disabled bool
}

// KeyInfo is a record and the tenant it belongs to.
type KeyInfo struct {
	Tenant string
	Record
}

// Key is a new API key: the one moment at which its secret is known.
type Key struct {
	// Record holds ID and SHA256; the caller fills in the rest.
	Record
	secret string
}

// NewKey makes a key from the system's random source.
func NewKey() (Key, error) { panic("BUG: not reached") }

// Reveal returns the credential to hand to the key's owner, slk_<id>_<secret>.
// It is shown once and kept nowhere.
func (k *Key) Reveal() string { panic("BUG: not reached") }

// AppendKey adds a record to a tenant in a tenants file, keeping every other
// byte of it, comments included. The file is replaced atomically; on an error
// it is unchanged.
func AppendKey(path, tenant string, rec *Record) error { panic("BUG: not reached") }

// AppendYAML appends the record as the item of a `keys:` list, each line
// indented by the given number of spaces.
func (r *Record) AppendYAML(dst []byte, indent int) []byte { panic("BUG: not reached") }
