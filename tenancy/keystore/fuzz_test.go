package keystore

import (
	"reflect"
	"testing"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// Grants that can be read are those that are written again.
func FuzzGrants(f *testing.F) {
	rec := authn.Record{Groups: []string{"a"}, Models: []string{"qwen-*"}, Claims: map[string]any{"n": int64(1), "x": 1.0, "l": []any{"a", true}}}
	f.Add(grantsOf(&rec))
	f.Add(`{"claims":{"a":[1e3,-0.0,9007199254740993]}}`)
	f.Add(`{"models":null,"claims":{"a":null}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var one, two authn.Record
		if readGrants(text, &one) != nil {
			return
		}
		if err := readGrants(grantsOf(&one), &two); err != nil {
			t.Fatalf("%q is written as %q: %v", text, grantsOf(&one), err)
		}
		for _, r := range []*authn.Record{&one, &two} {
			for _, list := range []*[]string{&r.Groups, &r.Scopes, &r.Models, &r.Operations} {
				if len(*list) == 0 {
					*list = nil // [] is as nothing
				}
			}
		}
		if !reflect.DeepEqual(one, two) {
			t.Fatalf("%q became %+v, then %+v", text, one, two)
		}
	})
}
