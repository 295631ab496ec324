package authn

import (
	"errors"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Errors of Identify. Clients get one and the same 401 for all of them; the
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
type Directory struct{}

// LoadFile reads a tenants file. The error lists every problem found as
// file:line:col: message.
func LoadFile(path string) (*Directory, error) { panic("BUG: not reached") }

// Load reads the text of a tenants file; name is for messages.
func Load(name string, text []byte) (*Directory, error) { panic("BUG: not reached") }

// Identify returns the principal of a credential. The principal is shared and
// must not be changed. The credential is neither kept nor logged. A principal
// of a disabled tenant is returned as such: the caller answers 403.
func (d *Directory) Identify(credential []byte, now time.Time) (*tenancy.Principal, error) {
	panic("BUG: not reached")
}

// Tenant returns a tenant by id, or nil.
func (d *Directory) Tenant(id string) *tenancy.Tenant { panic("BUG: not reached") }

// Tenants lists all tenants by id.
func (d *Directory) Tenants() []*tenancy.Tenant { panic("BUG: not reached") }

// Keys lists the records of all keys, by tenant and id.
func (d *Directory) Keys() []KeyInfo { panic("BUG: not reached") }
