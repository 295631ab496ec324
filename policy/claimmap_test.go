package policy

import (
	"context"
	"reflect"
	"strings"
	"testing"
)

func compileClaims(t testing.TB, src ClaimMapSource) *ClaimMap {
	t.Helper()
	m, err := CompileClaimMap(src)
	if err != nil {
		t.Fatalf("%+v: %v", src, err)
	}
	return m
}

func TestClaimMap(t *testing.T) {
	team := func(s string) *string { return &s }
	in := &ClaimInput{
		Kind: "jwt", Issuer: "https://idp.example", Subject: "u1", SPIFFEID: "spiffe://corp/ns/a",
		Claims: map[string]any{
			"org": "acme", "dept": "search", "groups": []any{"dev", "x-ops", "batch"}, "scope": "chat embed", "level": int64(3),
			"https://example.com/roles": []any{"admin"},
			"realm_access":              map[string]any{"roles": []any{"r1", "r2"}},
			"attrs":                     map[string]any{"zone": "eu", "env": "prod"},
		},
	}
	for _, c := range []struct {
		name string
		src  ClaimMapSource
		want Mapped
	}{
		{"a claim", ClaimMapSource{Tenant: "claims.org"}, Mapped{Tenant: "acme"}},
		{"a literal", ClaimMapSource{Tenant: "'fixed'"}, Mapped{Tenant: "fixed"}},
		{"by issuer", ClaimMapSource{Tenant: "issuer.startsWith('https://idp') ? claims.org : 'other'"}, Mapped{Tenant: "acme"}},
		{"by spiffe id", ClaimMapSource{Tenant: "spiffe_id.split('/')[4]"}, Mapped{Tenant: "a"}},
		{"optional", ClaimMapSource{Tenant: "claims.?none.orValue('acme')", Team: "claims.?none"}, Mapped{Tenant: "acme"}},
		{"team", ClaimMapSource{Tenant: "claims.org", Team: "claims.?dept"}, Mapped{Tenant: "acme", Team: team("search")}},
		{"empty team", ClaimMapSource{Tenant: "claims.org", Team: "''"}, Mapped{Tenant: "acme", Team: team("")}},
		{"groups", ClaimMapSource{Tenant: "claims.org", Groups: "claims.groups"}, Mapped{Tenant: "acme", Groups: []string{"dev", "x-ops", "batch"}}},
		{"nested", ClaimMapSource{Tenant: "claims.org", Groups: "claims.realm_access.roles"}, Mapped{Tenant: "acme", Groups: []string{"r1", "r2"}}},
		{"by url", ClaimMapSource{Tenant: "claims.org", Groups: "claims['https://example.com/roles']"}, Mapped{Tenant: "acme", Groups: []string{"admin"}}},
		{"filtered", ClaimMapSource{Tenant: "claims.org", Groups: "claims.groups.filter(g, g.startsWith('x-')).map(g, g.substring(2))"}, Mapped{Tenant: "acme", Groups: []string{"ops"}}},
		{"scopes", ClaimMapSource{Tenant: "claims.org", Scopes: "claims.scope.split(' ')"}, Mapped{Tenant: "acme", Scopes: []string{"chat", "embed"}}},
		{"labels", ClaimMapSource{Tenant: "claims.org", Labels: "{'env': string(claims.attrs.env), 'kind': kind}"}, Mapped{Tenant: "acme", Labels: map[string]string{"env": "prod", "kind": "jwt"}}},
		{"labels as they are", ClaimMapSource{Tenant: "claims.org", Labels: "claims.attrs"}, Mapped{Tenant: "acme", Labels: map[string]string{"zone": "eu", "env": "prod"}}},
		{"keys in order", ClaimMapSource{Tenant: "claims.org", Groups: "claims.attrs.map(k, k)"}, Mapped{Tenant: "acme", Groups: []string{"env", "zone"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := compileClaims(t, c.src).Eval(t.Context(), in)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// TestClaimMapRefuses: a caller without a tenant, and whatever fails, is nobody.
// No value of a claim is in the error.
func TestClaimMapRefuses(t *testing.T) {
	long := strings.Repeat("MARKED", 400)
	many := make([]any, 400)
	for i := range many {
		many[i] = long
	}
	in := &ClaimInput{Claims: map[string]any{
		"org": "MARKED", "level": int64(3), "list": []any{"MARKED", int64(1)}, "none": nil, "many": many, "long": long, "empty": "",
		"object": map[string]any{"MARKED": int64(1)},
	}}
	for _, c := range []struct {
		name string
		src  ClaimMapSource
		want string
	}{
		{"no such claim", ClaimMapSource{Tenant: "claims.missing"}, "tenant: the expression reads a claim that is not there"},
		{"none given", ClaimMapSource{Tenant: "claims.?missing"}, "tenant: there is none"},
		{"an empty one", ClaimMapSource{Tenant: "claims.empty"}, "tenant: there is none"},
		{"null", ClaimMapSource{Tenant: "claims.none"}, "tenant: the result is null_type, not text"},
		{"a number", ClaimMapSource{Tenant: "claims.level"}, "tenant: the result is int, not text"},
		{"a list", ClaimMapSource{Tenant: "claims.list"}, "tenant: the result is list, not text"},
		{"a method of another type", ClaimMapSource{Tenant: "claims.level.trim()"}, "tenant: the expression does with a claim what its type does not allow"},
		{"groups of a text", ClaimMapSource{Tenant: "claims.org", Groups: "claims.org"}, "groups: the result is string, not a list of texts"},
		{"groups of numbers", ClaimMapSource{Tenant: "claims.org", Groups: "claims.list"}, "groups: the list holds int, not only texts"},
		{"labels of a list", ClaimMapSource{Tenant: "claims.org", Labels: "claims.list"}, "labels: the result is list, not a map of texts"},
		{"labels of numbers", ClaimMapSource{Tenant: "claims.org", Labels: "claims.object"}, "labels: the map holds something other than texts"},
		{"too dear", ClaimMapSource{Tenant: "claims.many.filter(m, m.contains('x')).size() > 0 ? 'a' : 'b'"}, "tenant: the expression's cost exceeds 10000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := compileClaims(t, c.src).Eval(t.Context(), in)
			if err == nil || err.Error() != c.want {
				t.Errorf("got %+v, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestClaimMapEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	list := make([]any, 300)
	for i := range list {
		list[i] = "a"
	}
	_, err := compileClaims(t, ClaimMapSource{Tenant: "claims.l.all(x, x != 'b') ? 'a' : 'b'"}).Eval(ctx, &ClaimInput{Claims: map[string]any{"l": list}})
	if err == nil {
		t.Error("an expression went on although its caller was gone")
	}
}

func TestBadClaimMaps(t *testing.T) {
	for _, c := range []struct {
		src  ClaimMapSource
		want string
	}{
		{ClaimMapSource{}, "tenant: is missing, should be an expression for the tenant's id, such as claims.org or 'acme'"},
		{ClaimMapSource{Tenant: "claims.org +"}, "tenant: Syntax error"},
		{ClaimMapSource{Tenant: "claim.org"}, `tenant: unknown name "claim"; did you mean "claims"?`},
		{ClaimMapSource{Tenant: "principal.claims.org"}, `tenant: unknown name "principal.claims.org"`},
		{ClaimMapSource{Tenant: "7"}, "tenant: the result is int, it must be string or dyn or"},
		{ClaimMapSource{Tenant: "'a'", Team: "[claims.org]"}, "team: the result is list(dyn), it must be"},
		{ClaimMapSource{Tenant: "'a'", Groups: "'a b'"}, "groups: the result is string, it must be"},
		{ClaimMapSource{Tenant: "'a'", Labels: "{'a': 1}"}, "labels: the result is map(string, int), it must be"},
		{ClaimMapSource{Tenant: "claims.a.exists(x, claims.b.exists(y, claims.c.exists(z, x == z))) ? 'a' : 'b'"}, "tenant: comprehension exceeds nesting limit"},
		{ClaimMapSource{Tenant: "claims.a.exists(x, claims.b.exists(y, x.contains(string(y)))) ? 'a' : 'b'"}, "tenant: the estimated cost is up to"},
		{ClaimMapSource{Tenant: "claims.org.matches(claims.pattern) ? 'a' : 'b'"}, "tenant: the pattern of matches must be a string literal"},
	} {
		_, err := CompileClaimMap(c.src)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %s", c.src, err, c.want)
		}
	}
}

func BenchmarkClaimMap(b *testing.B) {
	m := compileClaims(b, ClaimMapSource{Tenant: "claims.org", Team: "claims.?dept", Groups: "claims.groups", Scopes: "claims.scope.split(' ')"})
	in := &ClaimInput{Claims: map[string]any{"org": "acme", "dept": "search", "groups": []any{"dev", "ops"}, "scope": "chat embed"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Eval(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
