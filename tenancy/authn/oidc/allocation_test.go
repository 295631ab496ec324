//go:build !race

package oidc

import (
	"testing"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

// TestRememberedTokensAllocateNothing.
func TestRememberedTokensAllocateNothing(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	tokens := NewTokens(verifier(t, fixed(t, s)), map[string]authn.Mapper{issuerName: grantAll{&tenancy.Tenant{ID: "acme"}}})
	chain := &authn.Chain{Tokens: tokens}
	c := &tenancy.Credentials{Bearer: []byte(s.Token(oidctest.Claims(issuerName, noon)))}
	n := testing.AllocsPerRun(100, func() {
		if _, err := chain.Identify(t.Context(), c, noon); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
