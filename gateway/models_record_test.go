package gateway

import (
	"strings"
	"testing"
)

// TestRefusedModelOnRecord: a name that is nowhere in the configuration is the
// client's text and not kept, one that another tenant has is.
func TestRefusedModelOnRecord(t *testing.T) {
	for name, want := range map[string]string{
		"secret":             "secret",
		"nope":               "sha256:ca3704aa0b06f595", // printf nope | sha256sum
		"sk-live-0123456789": "",
	} {
		r := newRig(t, nil)
		resp, body := r.chat(`{"model":"` + name + `","messages":[]}`).Answer()
		wantError(t, resp, body, 404, "model_not_found")
		got := r.row().RequestedModel
		if want != "" && got != want || want == "" && (strings.Contains(got, "sk-") || len(got) != len("sha256:")+16) {
			t.Errorf("%s: the row has %q, want %q", name, got, want)
		}
	}
}
