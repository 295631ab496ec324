package simulate

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// readConversation reads the first rows of a real trace.
func readConversation(tb testing.TB, n int) *Plan {
	tb.Helper()
	f, err := os.Open("testdata/conversation.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	p, err := ReadTrace("conversation.jsonl", f, n)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestReadTrace(t *testing.T) {
	const text = `{"timestamp": 0, "input_length": 512, "output_length": 3, "hash_ids": [7]}

{"timestamp": 27.5, "input_length": 1025, "output_length": 0, "hash_ids": [7, 18446744073709551615, 2], "more": null}
`
	p, err := ReadTrace("t", strings.NewReader(text), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{
		{Prompt: []Segment{{7, 512}}, Output: 3},
		{At: 27500 * time.Microsecond, Prompt: []Segment{{7, 512}, {1<<64 - 1, 512}, {2, 1}}, Output: 1},
	}
	if !reflect.DeepEqual(p.Requests, want) {
		t.Errorf("got %+v", p.Requests)
	}
	if p, err = ReadTrace("t", strings.NewReader(text), 1); err != nil || len(p.Requests) != 1 {
		t.Errorf("of the first row: %+v, %v", p, err)
	}
	if p := readConversation(t, 0); len(p.Requests) != 150 || p.Requests[0].tokens() != 6758 || p.Requests[0].Output != 500 {
		t.Errorf("the real trace has %d requests, the first one %+v", len(p.Requests), p.Requests[0])
	}
}

func TestReadTraceErrors(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		_, err := ReadTrace("t", strings.NewReader(text), 0)
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
	const good = `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}` + "\n"
	row := func(timestamp, input, output, ids string) string {
		return good + fmt.Sprintf(`{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}`, timestamp, input, output, ids)
	}
	f("", "t has no requests; it should have one JSON object a line")
	f("\n\n", "t has no requests; it should have one JSON object a line")
	f(good+"x", "t:2: not a JSON object of a trace: invalid character 'x' looking for beginning of value")
	f(good+"[]", "t:2: not a JSON object of a trace: json: cannot unmarshal array into Go value of type simulate.traceRow")
	f(`{"input_length": 1, "output_length": 1, "hash_ids": [0]}`, "t:1: timestamp is missing, should be milliseconds from the start")
	f(`{"timestamp": 1, "output_length": 1, "hash_ids": [0]}`, "t:1: input_length is missing, should be the prompt's tokens")
	f(`{"timestamp": 1, "input_length": 1, "hash_ids": [0]}`, "t:1: output_length is missing, should be the answer's tokens")
	f(row(`"1"`, "1", "1", "[0]"), "t:2: timestamp is a string, should be a number of milliseconds")
	f(row("-1", "1", "1", "[0]"), "t:2: timestamp is -1, should be milliseconds from the start, 0 to a year")
	f(row("1", "1.5", "1", "[0]"), "t:2: input_length is a number 1.5, should be a whole number")
	f(row("1", "0", "1", "[]"), "t:2: input_length is 0, should be 1 to 67108864")
	f(row("1", "1", "-1", "[0]"), "t:2: output_length is -1, should be 0 to 67108864")
	f(row("1", "513", "1", "[0]"), "t:2: hash_ids has 1 ids, should have 2 for input_length 513: one for each 512 tokens")
	f(row("1", "512", "1", `["a"]`), "t:2: hash_ids is a string, should be an array of whole numbers from 0")
	f(row("1", "512", "1", "[-1]"), "t:2: hash_ids is a number -1, should be an array of whole numbers from 0")
	f(good+strings.Repeat(" ", maxTraceLine), "t:2: line is longer than 1048576 bytes")
}

// FuzzReadTrace checks that whatever is read is a plan that means something.
func FuzzReadTrace(f *testing.F) {
	text, err := os.ReadFile("testdata/conversation.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	rows := bytes.SplitAfter(text, []byte("\n"))
	f.Add(bytes.Join(rows[:2], nil))
	f.Add([]byte(`{"timestamp":1e3,"input_length":513,"output_length":0,"hash_ids":[0,18446744073709551615]}`))
	f.Add([]byte(`{"timestamp":null,"input_length":1,"output_length":1,"hash_ids":[0.5]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ReadTrace("t", bytes.NewReader(text), 0)
		if err != nil {
			if p != nil {
				t.Fatal("a plan beside an error")
			}
			return
		}
		for i, r := range p.Requests {
			if r.At < 0 || r.Output < 1 || r.tokens() < 1 || r.Turn {
				t.Fatalf("request %d: %+v", i, r)
			}
		}
	})
}

// TestSegments: equal ids are equal tokens, a shorter segment the beginning of a
// longer one, and different ids share nothing to speak of.
func TestSegments(t *testing.T) {
	long := Segment{5, 512}.append(nil)
	if short := (Segment{5, 100}).append(nil); !slices.Equal(short, long[:100]) {
		t.Error("a shorter segment is not the beginning of the longer one")
	}
	if got := (Segment{5, 3}).append([]uint32{1}); !slices.Equal(got, append([]uint32{1}, long[:3]...)) {
		t.Error("a segment is not appended")
	}
	equal := 0
	for i, tok := range (Segment{6, 512}).append(nil) {
		if tok >= vocabulary {
			t.Fatalf("token %d is outside the vocabulary", tok)
		}
		if tok == long[i] {
			equal++
		}
	}
	if equal > 3 {
		t.Errorf("%d of 512 tokens of two ids are equal", equal)
	}
}
