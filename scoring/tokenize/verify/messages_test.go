package verify

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

// counting is an engine that tells of messages how long their prompt is: longer than
// here where they hold a certain text. A status other than 200 is its answer instead.
func counting(status int, longer string) Source {
	ids := byLength("")
	return func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
		if kind != tokenize.Messages {
			return ids(ctx, dst, kind, body)
		}
		if status != http.StatusOK {
			return &tokenize.StatusError{Code: status}
		}
		dst.Length = len(body)
		if longer != "" && strings.Contains(string(body), longer) {
			dst.Length++
		}
		return nil
	}
}

// TestMessagesAreJudgedByLength: of messages nothing but a length is known, and a
// worker without them is not judged by them, nor taken for one that can't be asked.
func TestMessagesAreJudgedByLength(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		longer string
		want   map[Shape]State
		log    string
	}{
		{"agrees", 200, "", map[Shape]State{MessagesPlain: Verified, MessagesParts: Verified, MessagesTools: Verified, MessagesSettings: Verified}, "the local tokenizer agrees with the worker"},
		{"prints tools otherwise", 200, "input_schema", map[Shape]State{MessagesPlain: Verified, MessagesParts: Verified, MessagesTools: Mismatch, MessagesSettings: Verified}, "shape=messages-tools"},
		{"has no such route", 404, "", map[Shape]State{}, "the local tokenizer agrees with the worker"},
		{"refuses", 400, "", map[Shape]State{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			checker, log := newChecker(byLength(""), []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: counting(c.status, c.longer)}}, 200)
			checker.opts.Probes = append(DefaultProbes(), MessagesProbes()...)
			checker.probeAll(t.Context())
			if !checker.compared.Load() {
				t.Error("the worker counts as one that can't be asked")
			}
			for _, s := range Shapes() {
				want := c.want[s]
				if s < MessagesPlain {
					want = Verified
				}
				if got := checker.verdicts[s].status().State; got != want || checker.Trusts(s) != (want != Mismatch) {
					t.Errorf("%v is %v, want %v", s, got, want)
				}
			}
			if !strings.Contains(log.String(), c.log) {
				t.Errorf("the log lacks %q:\n%s", c.log, log)
			}
		})
	}
}
