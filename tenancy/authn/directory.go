package authn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// Causes of the errors of IdentifyKey. Clients get one and the same 401 for all of them; the
// difference is for the log and the metric.
var (
	// ErrUnknown: malformed, or no such key, or a wrong secret.
	ErrUnknown = errors.New("unknown credential")
	// ErrExpired: a right key after its expiry.
	ErrExpired = errors.New("expired credential")
	// ErrRevoked: a right key that its owner disabled.
	ErrRevoked = errors.New("revoked credential")
)

// Directory is the tenants and keys of one tenants file: immutable, safe for
// concurrent use, replaced whole on reload.
type Directory struct {
	tenants []*tenancy.Tenant // by id
	byID    map[string]*tenancy.Tenant
	infos   []KeyInfo // by tenant, in the order of the file
	keys    map[string]*entry
	digest  contentHash // of the text
	// nobody stands in for the entry of an unknown id, so that such a
	// credential is hashed and compared like any other.
	nobody entry
}

// maxFileSize bounds a tenants file; ten times the hundred thousand keys that
// would fit are no longer a matter for a file.
const maxFileSize = 64 << 20

// LoadFile reads a tenants file. The error lists every problem found as
// file:line:col: message.
func LoadFile(path string) (*Directory, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the tenants file: %w", err)
	}
	return Load(path, text)
}

func readFile(path string) ([]byte, error) { return plainfile.Read(path, maxFileSize) }

// Identify implements gateway.Identifier for API keys alone.
func (d *Directory) Identify(_ context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	return d.IdentifyKey(c.Bearer, now)
}

// Refuses implements gateway.Refuser.
func (d *Directory) Refuses(c *tenancy.Credentials, now time.Time) bool {
	p, err := d.IdentifyKey(c.Bearer, now)
	return err != nil || p.Tenant.Disabled
}

// errUnknown is shared: whoever guesses shall not make garbage.
var errUnknown = &tenancy.AuthError{Reason: tenancy.AuthUnknown, Cause: ErrUnknown}

// IdentifyKey returns the principal of an API key. The principal is shared and
// must not be changed. The credential is neither kept nor logged. A principal
// of a disabled tenant is returned as such: the caller answers 403. The error is
// a *tenancy.AuthError.
//
// The shape of a credential is public, so a malformed one is refused at once.
// From there on every credential is hashed and compared in constant time,
// whether its id exists or not.
func (d *Directory) IdentifyKey(credential []byte, now time.Time) (*tenancy.Principal, error) {
	id, secret, ok := parseCredential(credential)
	if !ok {
		return nil, errUnknown
	}
	e := d.keys[string(id)]
	if !e.holds(secret, &d.nobody) {
		return nil, errUnknown
	}
	if err := e.refusal(now); err != nil {
		return nil, err
	}
	return e.principal, nil
}

// Tenant returns a tenant by id, or nil.
func (d *Directory) Tenant(id string) *tenancy.Tenant { return d.byID[id] }

// Tenants lists all tenants by id. The slice is the caller's, the tenants are
// shared.
func (d *Directory) Tenants() []*tenancy.Tenant {
	return append([]*tenancy.Tenant(nil), d.tenants...)
}

// Keys lists the records of all keys, by tenant and in the order of the file.
// The slice is the caller's.
func (d *Directory) Keys() []KeyInfo { return append([]KeyInfo(nil), d.infos...) }
