package gateway

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// Identifier turns what a request brings into a principal.
type Identifier interface {
	// Identify may wait for one fetch of keys, bounded by ctx. An error means 401,
	// or 503 if it says tenancy.AuthKeysDown; its text is for the log and holds
	// nothing of a credential.
	// The principal of a disabled tenant is returned as such.
	Identify(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error)
}

// Refuser is an Identifier that can tell of many requests that they will be
// refused, before their body is read.
type Refuser interface {
	// Refuses reports whether no body can change that a request with these
	// credentials is refused. It knows of no certificate, waits for nothing, counts
	// as no use of the credential, and is false where it would have to do much.
	Refuses(c *tenancy.Credentials, now time.Time) bool
}

// Changer is an Identifier that can tell when credentials may have been taken back.
type Changer interface {
	// Changed returns another number whenever one may have been.
	Changed() uint64
	// Stands reports whether a principal that was let in has not been taken back since.
	// It waits for nothing.
	Stands(p *tenancy.Principal) bool
}

// proxyHeader is where a trusted proxy says for whom it speaks.
const proxyHeader = "X-Sluice-Identity"

// identified is what an Expect: 100-continue has found out, for the request that
// goes on after it. It stands in the request's user values.
type identified struct {
	principal *tenancy.Principal
	asOf      uint64
}

// identifiedKey is the name of that value.
type identifiedKey struct{}

// identify finds out who is calling, once a request. All ways to fail look the
// same to the client.
func (ex *exchange) identify(ctx *fasthttp.RequestCtx) *rejection {
	now := ex.st.credentialsChanged()
	if before, ok := ctx.UserValue(identifiedKey{}).(identified); ok && before.asOf == now {
		ex.principal, ex.asOf = before.principal, now
		ex.known.Store(ex.principal)
		return nil
	}
	ex.asOf = now
	p, err := ex.caller(ctx)
	if err != nil {
		ex.g.parts.Meter.AuthFailed(authReason(err))
		if ex.wasCut.Load() {
			return shuttingDown() // what failed did so because of that
		}
		return unknownCaller(err)
	}
	ex.principal = p
	ex.known.Store(p)
	if p.Tenant.Disabled {
		return &rejection{
			status: fasthttp.StatusForbidden, kind: "permission_error", code: "tenant_disabled",
			message: "this tenant is disabled", outcome: tenancy.OutcomeDenied,
		}
	}
	return ex.checkScope()
}

// remember keeps what identify has found for the request that goes on.
func (ex *exchange) remember(ctx *fasthttp.RequestCtx) {
	if ex.principal != nil {
		ctx.SetUserValue(identifiedKey{}, identified{ex.principal, ex.asOf})
	}
}

// stillKnown identifies the caller again if credentials were taken back while its
// body came: who sends it slowly must not be served for as long as that takes.
func (ex *exchange) stillKnown(ctx *fasthttp.RequestCtx) *rejection {
	if ex.asOf == ex.st.credentialsChanged() {
		return nil
	}
	return ex.identify(ctx)
}

// callerStands reports whether the caller was not taken back since it was identified, where
// that can be told: a request may have waited for minutes.
func (ex *exchange) callerStands() bool {
	c, ok := ex.st.Identifier.(Changer)
	if !ok {
		return true
	}
	now := c.Changed() // what changes from here on is looked at again
	if now != ex.asOf && !c.Stands(ex.principal) {
		return false
	}
	ex.asOf = now
	return true
}

// credentialsChanged is another number when credentials may have been taken back,
// and always the same if that can't be told.
func (st *State) credentialsChanged() uint64 {
	if c, ok := st.Identifier.(Changer); ok {
		return c.Changed()
	}
	return 0
}

// caller gathers the request's credentials and has them judged.
func (ex *exchange) caller(ctx *fasthttp.RequestCtx) (*tenancy.Principal, error) {
	c := &ex.credentials
	defer func() { *c = tenancy.Credentials{} }() // views of the request's memory
	if reason := headerCredentials(&ctx.Request.Header, c); reason != "" {
		return nil, &tenancy.AuthError{Reason: reason}
	}
	if ex.st.ConnectionIdentity {
		c.Chain = verifiedChain(ctx)
	}
	if addr, ok := netip.AddrFromSlice(ctx.RemoteIP()); ok {
		c.Peer = addr.Unmap()
	}
	if c.Bearer == nil && !ex.st.ConnectionIdentity {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthMissing}
	}
	return ex.st.Identifier.Identify(ex.ctx, c, ex.start)
}

// verifiedChain is the client's certificate with those above it, as TLS has
// verified them.
func verifiedChain(ctx *fasthttp.RequestCtx) []*x509.Certificate {
	c := tlsOf(ctx.Conn())
	if c == nil {
		return nil
	}
	if chains := c.ConnectionState().VerifiedChains; len(chains) > 0 {
		return chains[0]
	}
	return nil
}

// authReason is the word for a failed identification in metrics and logs, one of
// tenancy.AuthReasons.
func authReason(err error) string {
	if e, ok := errors.AsType[*tenancy.AuthError](err); ok {
		return e.AuthReason()
	}
	return tenancy.AuthOther
}

// headerCredentials finds what a request's headers hold of credentials. It
// returns the reason if they are none that could be judged.
func headerCredentials(h *fasthttp.RequestHeader, c *tenancy.Credentials) (reason string) {
	bearer, reason := credential(h)
	if reason != "" && reason != tenancy.AuthMissing {
		return reason
	}
	c.Bearer = bearer
	switch values := h.PeekAll(proxyHeader); {
	case len(values) == 0:
	case len(values) > 1:
		// Which of them counts is in doubt, whoever sent them.
		c.Proxy = []byte{}
	default:
		c.Proxy = values[0]
	}
	return ""
}

// credential finds the one credential of a request. reason is set, and the
// credential nil, if there is none or there is doubt which one counts.
func credential(h *fasthttp.RequestHeader) (cred []byte, reason string) {
	for _, name := range [...]string{"Authorization", "X-Api-Key", "Api-Key"} {
		values := h.PeekAll(name)
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return nil, tenancy.AuthRepeated
		}
		v := values[0]
		if name == "Authorization" {
			scheme, rest, ok := bytes.Cut(v, []byte(" "))
			if !ok || !bytes.EqualFold(scheme, []byte("Bearer")) {
				return nil, tenancy.AuthNotBearer
			}
			v = bytes.Trim(rest, " ")
		}
		switch {
		case len(v) == 0:
			return nil, tenancy.AuthEmpty
		case slices.ContainsFunc(v, func(b byte) bool { return b <= ' ' || b == 0x7f }):
			return nil, tenancy.AuthMalformed
		case cred != nil && !bytes.Equal(cred, v):
			return nil, tenancy.AuthConflicting
		}
		cred = v
	}
	if cred == nil {
		return nil, tenancy.AuthMissing
	}
	return cred, ""
}
