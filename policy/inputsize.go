package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"unicode/utf8"
)

// Validate enforces the size maxima of section 2, which make the cost
// estimates bounds. A request beyond them is refused, never cut, since a cut
// list could hide what a rule forbids. The error is an *InputError.
//
// Validate also replaces a user or session id of more than 128 characters by
// sha256:<hex>, in place.
func (in *Input) Validate() error {
	in.Request.SessionID = shortID(in.Request.SessionID)
	in.Request.User = shortID(in.Request.User)
	c := sizeChecks{}
	r := &in.Request
	c.text("request.operation", r.Operation, maxWord)
	c.text("request.dialect", r.Dialect, maxWord)
	c.text("request.method", r.Method, maxWord)
	c.text("request.path", r.Path, maxPath)
	c.text("request.model", r.Model, maxModelSize)
	c.text("request.requested_model", r.RequestedModel, maxModelSize)
	c.text("request.model_family", r.ModelFamily, maxModelSize)
	c.text("request.source_ip", r.SourceIP, maxSourceIP)
	c.list("request.tool_names", r.ToolNames, maxTools, maxToolSize)
	c.list("request.modalities", r.Modalities, maxModalities, maxWord)
	c.table("request.headers", r.Headers, maxHeaderCount, maxHeaderName, maxHeaderValue)
	c.list("content.declared_labels", in.DeclaredLabels, maxLabelCount, maxName)
	in.validateIdentity(&c)
	if c.err != nil {
		return c.err
	}
	return nil
}

func (in *Input) validateIdentity(c *sizeChecks) {
	c.identity = true
	p := &in.Principal
	c.text("principal.kind", p.Kind, maxWord)
	c.text("principal.id", p.ID, maxPrincipalID)
	c.text("principal.subject", p.Subject, maxSubject)
	c.text("principal.issuer", p.Issuer, maxSubject)
	c.list("principal.groups", p.Groups, maxGroups, maxGroupSize)
	c.list("principal.scopes", p.Scopes, maxScopes, maxGroupSize)
	if p.KeyID != nil {
		c.text("principal.key_id", *p.KeyID, maxKeyID)
	}
	if p.SPIFFEID != nil {
		c.text("principal.spiffe_id", *p.SPIFFEID, maxSPIFFE)
	}
	t := &in.Tenant
	c.text("tenant.id", t.ID, maxTenantWord)
	c.text("tenant.team", t.Team, maxTenantWord)
	c.text("tenant.tier", t.Tier, maxTenantWord)
	c.table("tenant.labels", t.Labels, maxTenantLabels, maxName, maxName)
}

// sizeChecks keeps the first excess.
type sizeChecks struct {
	identity bool
	err      *InputError
}

func (c *sizeChecks) fail(name, format string, args ...any) {
	if c.err == nil {
		c.err = &InputError{Variable: name, Identity: c.identity, Problem: fmt.Sprintf(format, args...)}
	}
}

func longer(s string, most int) bool {
	return len(s) > most && utf8.RuneCountInString(s) > most
}

func (c *sizeChecks) text(name, s string, most int) {
	if longer(s, most) {
		c.fail(name, "more than %d characters", most)
	}
}

func (c *sizeChecks) list(name string, list []string, most, size int) {
	if len(list) > most {
		c.fail(name, "more than %d entries", most)
		return
	}
	for _, s := range list {
		if longer(s, size) {
			c.fail(name, "an entry of more than %d characters", size)
			return
		}
	}
}

func (c *sizeChecks) table(name string, m map[string]string, most, key, value int) {
	if len(m) > most {
		c.fail(name, "more than %d entries", most)
		return
	}
	for k, v := range m {
		if longer(k, key) {
			c.fail(name, "a name of more than %d characters", key)
		}
		if longer(v, value) {
			c.fail(name, "a value of more than %d characters", value)
		}
	}
}

// shortID replaces an identifier that is too long by its digest, which is as
// good a key.
func shortID(s *string) *string {
	if s == nil || !longer(*s, maxClientID) {
		return s
	}
	sum := sha256.Sum256([]byte(*s))
	short := "sha256:" + hex.EncodeToString(sum[:])
	return &short
}
