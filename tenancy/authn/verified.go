package authn

import (
	"context"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Verified is a caller whose credential is genuine, and of whom it is not yet
// known whose they are.
type Verified struct {
	// Kind, ID, Subject, Issuer and SPIFFEID are those of the principal-to-be.
	Kind, ID, Subject, Issuer, SPIFFEID string
	// Claims are what the credential says, as decoded from JSON: string, bool,
	// int64, float64, nil, []any and map[string]any.
	Claims map[string]any
	// Expires is when the credential ends; never zero.
	Expires time.Time
}

// Mapper makes a principal of a verified caller.
type Mapper interface {
	// Map returns a *tenancy.AuthError for a caller who is nobody's.
	Map(ctx context.Context, v *Verified) (*tenancy.Principal, error)
}

// Grant is whose a verified caller is.
type Grant struct {
	// Tenant is the id of a tenant of the tenants file.
	Tenant string
	// Team stands in for the tenant's own unless it is nil.
	Team *string
	// Labels are added to the tenant's own.
	Labels map[string]string
	// Groups and Scopes are the principal's.
	Groups, Scopes []string
}

// GrantFunc says whose a verified caller is. The text of its error holds nothing
// that the caller's credential says.
type GrantFunc func(ctx context.Context, v *Verified) (Grant, error)

// Authenticator judges one kind of credential.
type Authenticator interface {
	// Authenticate returns nil, nil where a request has nothing of its kind, and a
	// *tenancy.AuthError where what it has is no good.
	Authenticate(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error)
}
