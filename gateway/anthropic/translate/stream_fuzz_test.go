package translate

import (
	"bytes"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

// FuzzTranslator feeds lines as chunks. Whatever they are, what comes out is a
// well-formed message up to some point, and brought to an end only without an error.
func FuzzTranslator(f *testing.F) {
	f.Add([]byte(chunk(`{"role":"assistant","content":""}`) + "\n" + chunk(`{"content":"a"}`) + "\n" + finishChunk(`"stop"`, `"b"`)))
	f.Add([]byte(chunk(calls(piece(0, "c1", "f", `{"a"`), piece(1, "c2", "g", `{"b"`))) + "\n" + chunk(calls(piece(0, "", "", `:"\u007d"}`))) +
		"\n" + chunk(`{"reasoning":"\ud83d"}`) + "\n" + finishChunk(`"tool_calls"`, `null`)))
	f.Add([]byte(`{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"[1]"}},{"id":"x","function":{"name":"g"}}]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		const limit = 2000
		tr := NewTranslator("msg_r1", limit)
		var out []byte
		var err error
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			if out, err = tr.AppendChunk(out, line, wire.Usage{Input: 10, Known: true}); err != nil {
				break
			}
			if tr.held > limit {
				t.Fatalf("%d bytes are held back", tr.held)
			}
		}
		if err == nil {
			out, err = tr.AppendEnd(out, testUsage)
		}
		h, heardErr := hearAll(out)
		if heardErr != nil {
			t.Fatalf("%v\n%q\n%s", heardErr, text, out)
		}
		if h.done != (err == nil) {
			t.Fatalf("done: %v, with the error %v\n%q\n%s", h.done, err, text, out)
		}
		if whole, err := AppendMessage(nil, text, "msg_r1", testUsage); err == nil {
			if _, err := document(whole); err != nil {
				t.Fatalf("%q gives %q: %v", text, whole, err)
			}
		}
	})
}
