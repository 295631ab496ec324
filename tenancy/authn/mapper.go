package authn

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sluicegate/sluice/tenancy"
)

// maxDerived bounds the tenants that a mapper keeps which differ from those of
// the tenants file. What is beyond is made for each caller anew.
const maxDerived = 1 << 16

// Tenants finds tenants by their id. Tenant returns nil for one that there is
// not.
type Tenants interface {
	Tenant(id string) *tenancy.Tenant
}

// mapper is the Mapper of a generation.
type mapper struct {
	tenants Tenants
	keep    []string
	grant   GrantFunc
	derived *derivedTenants
}

// NewMappers returns a maker of Mappers that find tenants in one place. They
// share what they derive of them. Of what a credential says, principals have the
// claims that keep names and no others: what nobody reads is not remembered.
func NewMappers(tenants Tenants, keep []string) func(GrantFunc) Mapper {
	derived := &derivedTenants{of: make(map[string]*tenancy.Tenant)}
	return func(grant GrantFunc) Mapper { return &mapper{tenants, keep, grant, derived} }
}

var (
	errNoSuchTenant = errors.New("the mapping gives a tenant that the tenants file does not have")
	errLabelTaken   = errors.New("the mapping gives a label another value than the tenants file does")
)

// Map implements Mapper.
func (m *mapper) Map(ctx context.Context, v *Verified) (*tenancy.Principal, error) {
	g, err := m.grant(ctx, v)
	if err != nil {
		if ctx.Err() != nil {
			return nil, &tenancy.AuthError{Reason: tenancy.AuthCancelled, Cause: ctx.Err()}
		}
		return nil, &tenancy.AuthError{Reason: tenancy.AuthUnmapped, Cause: err}
	}
	t := m.tenants.Tenant(g.Tenant)
	if t == nil {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthUnmapped, Cause: errNoSuchTenant}
	}
	if t, err = m.derived.tenant(t, &g); err != nil {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthUnmapped, Cause: err}
	}
	return &tenancy.Principal{
		Kind: v.Kind, ID: v.ID, Subject: v.Subject, Issuer: v.Issuer, SPIFFEID: v.SPIFFEID,
		Groups: g.Groups, Scopes: g.Scopes, Claims: plainClaims(v.Claims, m.keep), ExpiresAt: v.Expires, Tenant: t,
	}, nil
}

// plainClaims are those of some claims that a principal can have: scalars, and
// lists of them.
func plainClaims(claims map[string]any, keep []string) map[string]any {
	out := make(map[string]any, len(keep))
	for _, name := range keep {
		v := claims[name]
		list, isList := v.([]any)
		if isList && !slices.ContainsFunc(list, func(x any) bool { return !scalarClaim(x) }) || scalarClaim(v) {
			out[name] = v
		}
	}
	return out
}

func scalarClaim(v any) bool {
	switch v.(type) {
	case string, bool, int64, float64:
		return true
	}
	return false
}

// derivedTenants are tenants with another team or more labels than the tenants
// file gives them, each once, so that principals share them.
type derivedTenants struct {
	mu sync.Mutex
	of map[string]*tenancy.Tenant
}

// tenant is t as a grant makes it.
func (d *derivedTenants) tenant(t *tenancy.Tenant, g *Grant) (*tenancy.Tenant, error) {
	team := t.Team
	if g.Team != nil {
		team = *g.Team
	}
	more := false
	for name, value := range g.Labels {
		own, taken := t.Labels[name]
		if taken && own != value {
			return nil, errLabelTaken
		}
		more = more || !taken
	}
	if team == t.Team && !more {
		return t, nil
	}
	labels := maps.Clone(t.Labels)
	if labels == nil {
		labels = make(map[string]string, len(g.Labels))
	}
	maps.Copy(labels, g.Labels)
	key := derivedKey(t.ID, team, labels)
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.of[key]; known != nil {
		return known, nil
	}
	out := *t
	out.Team, out.Labels = team, labels
	if len(d.of) < maxDerived {
		d.of[key] = &out
	}
	return &out, nil
}

func derivedKey(id, team string, labels map[string]string) string {
	var b strings.Builder
	field := func(s string) {
		b.WriteString(strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "\n", `\n`))
		b.WriteByte('\n')
	}
	field(id)
	field(team)
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		field(name)
		field(labels[name])
	}
	return b.String()
}
