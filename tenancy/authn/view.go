package authn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Changed counts the changes of what is in force: it is another number as long as
// something may have been taken back.
func (l *Live) Changed() uint64 { return l.snap.Load().number }

// Stands reports whether a principal that was let in would still be: its key was not
// taken out or revoked, it is not on the list of revoked credentials, and its tenant
// is there and not disabled. A key that has ended since was not taken back.
func (l *Live) Stands(p *tenancy.Principal) bool {
	s := l.snap.Load()
	if s.revoked.Principal(p.ID) {
		return false
	}
	if said := s.file.byID[p.Tenant.ID]; said == nil || said.Disabled {
		return false
	}
	if p.Kind != tenancy.KindAPIKey {
		return true
	}
	e, _ := s.find([]byte(p.KeyID))
	return e != nil && s.takenBack(e) == nil && e.tenant == p.Tenant.ID
}

// takenBack is why a key is refused that was revoked, by whichever of the sources:
// a key that the database has is revoked by the tenants file, too.
func (s *snapshot) takenBack(e *entry) error {
	if s.revoked.keys[e.id] {
		return errListed
	}
	if e.disabled {
		return ErrRevoked
	}
	if other := s.file.keys[e.id]; other != nil && other.disabled {
		return errFile
	}
	return nil
}

// View is the keys in force, for the tenants of one generation.
type View struct {
	live    *Live
	tenants *Directory
	number  uint64
}

// View returns the keys in force for tenants that a generation has loaded.
func (l *Live) View(tenants *Directory) *View {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.views++
	return &View{live: l, tenants: tenants, number: l.views}
}

// Identify implements gateway.Identifier for API keys alone.
func (v *View) Identify(_ context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	return v.IdentifyKey(c.Bearer, now)
}

// Refuses implements gateway.Refuser.
func (v *View) Refuses(c *tenancy.Credentials, now time.Time) bool {
	_, p, err := v.judge(c.Bearer, now)
	return err != nil || p.Tenant.Disabled
}

// IdentifyKey is Directory.IdentifyKey with the keys that are in force at this
// moment. The principal has the tenant of the view's generation, but is of a
// disabled tenant as soon as the tenants file says so.
func (v *View) IdentifyKey(credential []byte, now time.Time) (*tenancy.Principal, error) {
	e, p, err := v.judge(credential, now)
	if err != nil {
		return nil, err
	}
	e.use.at(now)
	return p, nil
}

func (v *View) judge(credential []byte, now time.Time) (*entry, *tenancy.Principal, error) {
	id, secret, ok := parseCredential(credential)
	if !ok {
		return nil, nil, errUnknown
	}
	s := v.live.snap.Load()
	e, stored := s.find(id)
	if !e.holds(secret, &v.live.nobody) {
		return nil, nil, errUnknown
	}
	if err := s.takenBack(e); err != nil {
		return nil, nil, &tenancy.AuthError{Reason: tenancy.AuthRevoked, KeyID: e.id, Cause: err}
	}
	if err := e.refusal(now); err != nil {
		return nil, nil, err
	}
	if most := v.live.cfg.MaxStale; stored && most > 0 && v.live.stale(now) > most {
		return nil, nil, &tenancy.AuthError{Reason: tenancy.AuthKeysDown, KeyID: e.id, Cause: errStale}
	}
	p := v.principal(s, e)
	if p == nil {
		return nil, nil, &tenancy.AuthError{Reason: tenancy.AuthUnmapped, KeyID: e.id, Cause: errNoTenant}
	}
	return e, p, nil
}

var (
	errFile     = fmt.Errorf("%w: the tenants file disables it", ErrRevoked)
	errListed   = fmt.Errorf("%w: it is on the list of revoked credentials", ErrRevoked)
	errStale    = errors.New("the database of keys could not be asked for longer than is allowed")
	errNoTenant = errors.New("its tenant is not in force: the tenants file has no such tenant, or was not loaded whole")
)

// bound is the principal that a key has for one view and one state of the tenants
// file.
type bound struct {
	view, file uint64
	principal  *tenancy.Principal
}

// principal returns the key's principal, nil if its tenant is not in force. It is
// made once for each view and tenants file, and shared.
func (v *View) principal(s *snapshot, e *entry) *tenancy.Principal {
	if b := e.bound.Load(); b != nil && b.view == v.number && b.file == s.files {
		return b.principal
	}
	b := &bound{view: v.number, file: s.files}
	if t, said := v.tenants.byID[e.tenant], s.file.byID[e.tenant]; t != nil && said != nil {
		if t.Disabled != said.Disabled {
			other := *t
			other.Disabled = said.Disabled
			t = &other
		}
		p := *e.principal
		p.Tenant = t
		b.principal = &p
	}
	e.bound.Store(b)
	return b.principal
}
