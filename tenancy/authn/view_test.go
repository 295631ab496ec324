package authn

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Who was let in stands until the key, the list or the tenants file says otherwise.
func TestStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, twoTenants(), nil)
		v := f.view()
		key := func(credential string) *tenancy.Principal {
			p, err := v.IdentifyKey([]byte(credential), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		a, b, c := key(keyA), key(keyB), key(keyC)
		token := &tenancy.Principal{Kind: tenancy.KindJWT, ID: "jwt:https://idp.example:u 1", Tenant: a.Tenant}
		want := func(stands ...bool) {
			t.Helper()
			for i, p := range []*tenancy.Principal{a, b, c, token} {
				if got := f.Stands(p); got != stands[i] {
					t.Errorf("%s stands: %v", p.ID, got)
				}
			}
		}
		before := f.Changed()
		want(true, true, true, true)
		time.Sleep(time.Minute)
		if f.Changed() != before {
			t.Error("nothing has changed")
		}
		if _, err := RevokeKey(f.tenants, "ka1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(promise)
		synctest.Wait()
		want(false, true, true, true)
		if f.Changed() == before {
			t.Error("a change is not told")
		}
		f.write("tenants.yaml.revoked", "kb2\njwt:https://idp.example:u 1\n")
		time.Sleep(promise)
		synctest.Wait()
		want(false, false, true, false)
		f.write("tenants.yaml", "tenants:\n  - id: acme\n    disabled: true\n  - id: globex\n")
		f.write("tenants.yaml.revoked", "")
		time.Sleep(promise)
		synctest.Wait()
		want(false, false, false, false)
		f.write("tenants.yaml", "tenants:\n  - id: globex\n") // without acme, whose the token is
		time.Sleep(promise)
		synctest.Wait()
		want(false, false, false, false)
	})
}
