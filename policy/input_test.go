package policy

import (
	"errors"
	"strings"
	"testing"
)

func TestInputValidate(t *testing.T) {
	long := func(n int) string { return strings.Repeat("é", n) }
	many := func(n int) []string { return make([]string, n) }
	table := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[strings.Repeat("k", i)] = "v"
		}
		return out
	}
	f := func(variable string, identity bool, edit func(*Input)) {
		t.Helper()
		in := testInput()
		edit(in)
		err := in.Validate()
		var ie *InputError
		if !errors.As(err, &ie) || ie.Variable != variable || ie.Identity != identity || strings.Contains(err.Error(), "é") {
			t.Errorf("%s: got %v", variable, err)
		}
	}
	f("request.model", false, func(in *Input) { in.Request.Model = long(257) })
	f("request.requested_model", false, func(in *Input) { in.Request.RequestedModel = long(257) })
	f("request.tool_names", false, func(in *Input) { in.Request.ToolNames = many(513) })
	f("request.tool_names", false, func(in *Input) { in.Request.ToolNames = []string{long(129)} })
	f("request.headers", false, func(in *Input) { in.Request.Headers = table(33) })
	f("request.headers", false, func(in *Input) { in.Request.Headers = map[string]string{"x": long(1025)} })
	f("request.headers", false, func(in *Input) { in.Request.Headers = map[string]string{long(129): ""} })
	f("content.declared_labels", false, func(in *Input) { in.DeclaredLabels = many(65) })
	f("principal.groups", true, func(in *Input) { in.Principal.Groups = many(129) })
	f("principal.groups", true, func(in *Input) { in.Principal.Groups = []string{long(129)} })
	f("principal.scopes", true, func(in *Input) { in.Principal.Scopes = many(65) })
	f("principal.subject", true, func(in *Input) { in.Principal.Subject = long(257) })
	f("principal.issuer", true, func(in *Input) { in.Principal.Issuer = long(257) })
	f("tenant.labels", true, func(in *Input) { in.Tenant.Labels = table(33) })
	f("tenant.labels", true, func(in *Input) { in.Tenant.Labels = map[string]string{"a": long(64)} })
	if err := testInput().Validate(); err != nil {
		t.Errorf("an ordinary request: %v", err)
	}
	in := testInput()
	in.Request.Model = long(256) // characters, not bytes
	if err := in.Validate(); err != nil {
		t.Error(err)
	}
}

func TestLongClientIDsBecomeDigests(t *testing.T) {
	in := testInput()
	user, session := strings.Repeat("u", 129), strings.Repeat("s", 128)
	in.Request.User, in.Request.SessionID = &user, &session
	if err := in.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := *in.Request.User; !strings.HasPrefix(got, "sha256:") || len(got) != 71 || *in.Request.SessionID != session {
		t.Errorf("user %q, session %q", got, *in.Request.SessionID)
	}
	if user[0] != 'u' || len(user) != 129 {
		t.Error("the caller's text is changed")
	}
}
