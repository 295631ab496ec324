package tenancy

import "time"

// Tenant is one customer of the platform, as configured by its operator.
// Values are immutable once handed out and shared by concurrent requests.
type Tenant struct {
	// ID is the unique name of the tenant.
	ID string
	// Team is the unit that pays, for reports; may be empty.
	Team string
	// Tier is the service level, read by policies; may be empty.
	Tier string
	// Labels are free key-value pairs that policies and bindings select by.
	Labels map[string]string
	// ContentLabels are declared on every request of the tenant.
	ContentLabels []string
	// Models are globs of the models the tenant may use, in the syntax of
	// path.Match. Empty means all.
	Models []string
	// Weight is the tenant's part of what its class gets where work waits, against
	// that of other tenants; 0 counts as 1.
	Weight float64
	// Disabled refuses every request with 403; credentials still identify.
	Disabled bool
	// Expose opts in to response headers that tell about the inside.
	Expose Expose
}

// Expose says which x-sluice-* response headers a tenant receives.
type Expose struct {
	// Worker sends x-sluice-worker, an opaque worker name.
	Worker bool
	// Policy sends x-sluice-policy, the revision and on a denial the rule.
	Policy bool
	// Overhead sends x-sluice-overhead-us.
	Overhead bool
}

// AllowsModel reports whether the tenant may use the model: one of its globs
// matches, or it has none. A malformed glob matches nothing; the loader of the
// tenants file refuses those. A '*' does not match '/', so that "team/*" means
// one level; a glob of "*" alone matches every model.
func (t *Tenant) AllowsModel(model string) bool { return allowsModel(t.Models, model) }

// Kinds of principals.
const (
	KindAPIKey    = "api_key"
	KindJWT       = "jwt"
	KindMTLS      = "mtls"
	KindAnonymous = "anonymous"
)

// Principal is the verified caller of one request. It is shared by concurrent
// requests: nobody changes it or anything it refers to.
type Principal struct {
	// Kind is how the caller was verified: one of the Kind constants.
	Kind string
	// ID is unique among all principals: key:<key id>, jwt:<issuer>:<subject>
	// or mtls:<name>.
	ID string
	// Subject and Issuer are the token's, or empty. For an API key, Subject is
	// the name its owner gave it.
	Subject, Issuer string
	// SPIFFEID is that of the client's certificate, or empty.
	SPIFFEID string
	// Groups and Scopes are what the credential grants; empty where the kind
	// has none.
	Groups, Scopes []string
	// KeyID is the public part of an API key, or empty. Never the secret.
	KeyID string
	// Claims are further statements about the caller, by name. Values are
	// string, bool, int64, float64 or []any of those.
	Claims map[string]any
	// Scope is what the credential is for; nil for everything that its tenant may
	// do.
	Scope *Scope
	// ExpiresAt is when the credential ends; zero for one that does not.
	ExpiresAt time.Time
	// Tenant is never nil.
	Tenant *Tenant
}
