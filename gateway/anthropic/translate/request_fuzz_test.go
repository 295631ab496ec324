package translate

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

// FuzzAppendChat shows that a chat body is always valid JSON of a bounded size, and
// that whatever is not translated is refused in the terms of a 400.
func FuzzAppendChat(f *testing.F) {
	for _, s := range subjects() {
		f.Add(s.with("", ""))
		for name, samples := range s.fields {
			for _, x := range samples {
				f.Add(s.with(name, x.value))
			}
		}
	}
	f.Add([]byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"\ud83d","content":"\ude00"}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, p := range []Purpose{ForWorker, ForCount, ForTokens} {
			var names Names
			got, err := AppendChat(nil, body, p, &names)
			if err != nil {
				var e *wire.Error
				if !errors.As(err, &e) || e.Status != 400 || e.Code == "" || e.Message == "" || strings.ContainsRune(e.Message, 0) {
					t.Fatalf("%q gives the error %+v", body, err)
				}
				continue
			}
			if !json.Valid(body) || !json.Valid(got) {
				t.Fatalf("%q gives %q", body, got)
			}
			if len(got) > 4*len(body)+512 {
				t.Fatalf("%d bytes give %d", len(body), len(got))
			}
			var chat struct {
				Messages []struct{ Role string }
			}
			if err := json.Unmarshal(got, &chat); err != nil || len(chat.Messages) != len(names.from) {
				t.Fatalf("%q gives %q: %v, with the names of %d messages", body, got, err, len(names.from))
			}
		}
	})
}
