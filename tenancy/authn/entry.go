package authn

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// entry is one key, ready to be compared.
type entry struct {
	id, tenant  string
	hash        [sha256.Size]byte
	expires     time.Time
	disabled    bool
	rotatedFrom string
	// principal has the tenant that its own Directory has, or none.
	principal *tenancy.Principal
	// bound and use are a Live's.
	bound atomic.Pointer[bound]
	use   *usage
}

// newEntry returns the entry of a record. Its error does not show the digest.
func newEntry(tenant string, r *Record) (*entry, error) {
	e := &entry{id: r.ID, tenant: tenant, expires: r.Expires, disabled: r.Disabled, rotatedFrom: r.RotatedFrom}
	if !validKeyID([]byte(r.ID)) {
		return nil, errors.New("its id is not 1 to 32 lower-case letters and digits")
	}
	raw, err := hex.DecodeString(r.SHA256)
	if err != nil || len(raw) != len(e.hash) {
		return nil, fmt.Errorf("its sha256 is not %d hexadecimal digits", 2*len(e.hash))
	}
	copy(e.hash[:], raw)
	e.principal = &tenancy.Principal{
		Kind: tenancy.KindAPIKey, ID: "key:" + r.ID, KeyID: r.ID, Subject: r.Name,
		Groups: r.Groups, Scopes: r.Scopes, Claims: r.Claims, ExpiresAt: r.Expires,
	}
	if len(r.Models) > 0 || len(r.Operations) > 0 {
		e.principal.Scope = &tenancy.Scope{Models: r.Models, Operations: r.Operations}
	}
	return e, nil
}

// holds reports whether the secret is that of the key. A nil entry is compared,
// too, by way of nobody, and holds none.
func (e *entry) holds(secret []byte, nobody *entry) bool {
	sum := sha256.Sum256(secret)
	known := 1
	if e == nil {
		e, known = nobody, 0
	}
	return subtle.ConstantTimeCompare(sum[:], e.hash[:])&known == 1
}

// refusal is why the key does not work whoever holds it, nil if it does.
func (e *entry) refusal(now time.Time) error {
	switch {
	case e.disabled:
		return &tenancy.AuthError{Reason: tenancy.AuthRevoked, KeyID: e.id, Cause: ErrRevoked}
	case !e.expires.IsZero() && !now.Before(e.expires):
		return &tenancy.AuthError{Reason: tenancy.AuthExpired, KeyID: e.id, Cause: ErrExpired}
	}
	return nil
}
