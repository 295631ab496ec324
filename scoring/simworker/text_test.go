package simworker

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestByteTokenizerRoundTrips(t *testing.T) {
	tok := NewByteTokenizer()
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.String().Draw(rt, "text")
		if got := tok.Decode(tok.encode(nil, text)); got != strings.NewReplacer("<|im_start|>", "", "<|im_end|>", "").Replace(text) {
			rt.Fatalf("%q comes back as %q", text, got)
		}
	})
	seen := map[uint32]bool{}
	for b := range 256 {
		id := byteID(byte(b))
		if seen[id] || idByte(id) != byte(b) {
			t.Errorf("byte %d has id %d, which is byte %d", b, id, idByte(id))
		}
		seen[id] = true
	}
	for id := range uint32(tok.VocabSize()) {
		if text := tok.Decode([]uint32{id}); len(text) != 1 || text[0] < ' ' || text[0] > '~' {
			t.Errorf("id %d of the vocabulary is %q, want a printable character", id, text)
		}
	}
}

func TestByteTokenizerRendersChatML(t *testing.T) {
	tok := NewByteTokenizer()
	f := func(body, want string) {
		t.Helper()
		if got, err := tok.Render([]byte(body)); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", body, got, err, want)
		}
	}
	f(`{"messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]}`,
		"<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb\nc<|im_end|>\n<|im_start|>assistant\n")
	f(`{"messages":[{"role":"user","content":null}],"add_generation_prompt":false}`, "<|im_start|>user\n<|im_end|>\n")
	ids, err := tok.EncodeChat([]byte(`{"messages":[{"role":"user","content":"hi"}]}`))
	if err != nil || len(ids) != templateTokens+2 || ids[0] != byteStart {
		t.Errorf("ids %v, %v", ids, err)
	}
	for _, bad := range []string{`{`, `{"messages":[]}`, `{"messages":[{"role":"user","content":7}]}`} {
		if _, err := tok.EncodeChat([]byte(bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestDetokenizerGivesWholeCharacters(t *testing.T) {
	tok := NewByteTokenizer()
	d := detokenizer{tok: tok}
	var pieces []string
	for _, id := range tok.encode(nil, "aé€𝄞b") {
		pieces = append(pieces, d.add(id))
	}
	if want := []string{"a", "", "é", "", "", "€", "", "", "", "𝄞", "b"}; strings.Join(pieces, "|") != strings.Join(want, "|") {
		t.Errorf("pieces %q, want %q", pieces, want)
	}
	// What never becomes a character comes out in the end.
	d = detokenizer{tok: tok}
	var text string
	for range 10 {
		text += d.add(byteID(0xe2))
	}
	if text == "" {
		t.Error("ten broken bytes are held back")
	}
	if text += d.flush(); !strings.HasPrefix(text, "\uFFFD") || d.flush() != "" {
		t.Errorf("broken bytes give %q", text)
	}
}

func TestStopperNeverLetsAStopStringThrough(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		letters := rapid.SampledFrom([]rune("abé"))
		stops := rapid.SliceOfN(rapid.StringOfN(letters, 1, 4, -1), 1, 3).Draw(rt, "stops")
		pieces := rapid.SliceOf(rapid.StringOfN(letters, 0, 3, -1)).Draw(rt, "pieces")
		all := strings.Join(pieces, "")
		first := -1
		for _, s := range stops {
			// A text is searched each time a piece comes; the stop that ends
			// with the earliest piece wins, so compare by that.
			if i := strings.Index(all, s); i >= 0 && (first < 0 || i < first) {
				first = i
			}
		}
		st := newStopper(stops, false)
		var got, found string
		for _, p := range pieces {
			var emit string
			emit, found = st.add(p)
			got += emit
			if !utf8.ValidString(emit) {
				rt.Fatalf("a character was cut: %q", emit)
			}
			if found != "" {
				break
			}
		}
		if found == "" {
			got += st.flush()
		}
		if (found != "") != (first >= 0) {
			rt.Fatalf("found %q in %q with stops %q", found, all, stops)
		}
		if !strings.HasPrefix(all, got) {
			rt.Fatalf("emitted %q of %q", got, all)
		}
		for _, s := range stops {
			if strings.Contains(got, s) {
				rt.Fatalf("emitted %q, which holds the stop string %q", got, s)
			}
		}
	})
}

// TestJSONFaultIsWherePythonStops holds what Python 3.11 says about each text.
func TestJSONFaultIsWherePythonStops(t *testing.T) {
	for _, c := range []struct {
		text string
		pos  int
		msg  string
	}{
		{`{"model":`, 9, "Expecting value"},
		{`nothing`, 0, "Expecting value"},
		{`{`, 1, "Expecting property name enclosed in double quotes"},
		{`{a:1}`, 1, "Expecting property name enclosed in double quotes"},
		{`{"a":1,}`, 7, "Expecting property name enclosed in double quotes"},
		{`{"a" 1}`, 5, "Expecting ':' delimiter"},
		{`{"a":1 "b":2}`, 7, "Expecting ',' delimiter"},
		{`{"a":[1 2]}`, 8, "Expecting ',' delimiter"},
		{`{"a":[1,]}`, 8, "Expecting value"},
		{`{"a":"b`, 5, "Unterminated string starting at"},
		{"{\"a\":\"b\n\"}", 7, "Invalid control character at"},
		{`{"a":"\q"}`, 6, `Invalid \escape`},
		{`{"a":"\u12"}`, 7, `Invalid \uXXXX escape`},
		{`{"a":1} x`, 8, "Extra data"},
		{`{"a":01}`, 6, "Expecting ',' delimiter"},
		{`{"a":-}`, 5, "Expecting value"},
		{`{"ä":tru}`, 5, "Expecting value"},
		{`{"a":1.}`, 6, "Expecting ',' delimiter"},
	} {
		pos, msg, ok := jsonFault([]byte(c.text))
		if !ok || pos != c.pos || msg != c.msg {
			t.Errorf("%s: %d %q %v; want %d %q", c.text, pos, msg, ok, c.pos, c.msg)
		}
	}
	for _, good := range []string{`{}`, ` [1, -0.5e+3, "x\u00e9", null, true] `, `NaN`} {
		if pos, msg, ok := jsonFault([]byte(good)); ok {
			t.Errorf("%s: %d %q, want no fault", good, pos, msg)
		}
	}
}

func TestPythonText(t *testing.T) {
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	f(pyString("hot"), `'hot'`)
	f(pyString("it's"), `"it's"`)
	f(pyString(`it's "so"`), `'it\'s "so"'`)
	f(pyString("a\n\x01\\"), `'a\n\x01\\'`)
	f(pyInput([]byte(`{"a":1,"b":2}`)), `'<dict of 2 items>'`)
	f(pyInput([]byte(`[1]`)), `'<list of 1 items>'`)
	f(pyInput([]byte(` true`)), `True`)
	f(pyInput([]byte(`null`)), `None`)
	f(pyInput([]byte(`1.50`)), `1.50`)
	f(pyFloat(0), "0.0")
	f(pyFloat(53160), "53160.0")
	f(pyFloat(0.025), "0.025")
	f(pyFloat(1234567), "1.234567e+06")
	f(pyFloat(1796005779.908038), "1.796005779908038e+09")
}

func FuzzParseParams(f *testing.F) {
	f.Add([]byte(chatBody("x", `,"max_tokens":3,"stream":true,"stop":["a"],"n":2`)), true)
	f.Add([]byte(`{"model":"tiny","prompt":[[1]],"logprobs":2,"vllm_xargs":{"kv_cache_report_mode":"full"}}`), false)
	f.Add([]byte(`{"model":`), true)
	f.Add([]byte(`{"messages":[],"stream_options":{"include_usage":7}}`), true)
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		p, err := parseParams(body, chat)
		switch {
		case err != nil:
			if b := err.body(); !json.Valid(b) || err.Status != 400 {
				t.Errorf("error %d %s", err.Status, b)
			}
		case p.n < 1 || p.maxTokens < 0 || p.continuous && !p.usage:
			t.Errorf("accepted as %+v", p)
		}
	})
}

func FuzzJSONFault(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"\u00e9"}],"c":-1.5e3}`))
	f.Add([]byte(`{"a":tru`))
	f.Fuzz(func(t *testing.T, body []byte) {
		pos, _, ok := jsonFault(body)
		if ok && (pos < 0 || pos > len(body)) {
			t.Errorf("position %d in a text of %d bytes", pos, len(body))
		}
		if ok && json.Valid(body) && !strings.Contains(string(body), strings.Repeat("[", 100)) && strings.Count(string(body), "{") < 100 {
			t.Errorf("fault at %d in valid JSON", pos)
		}
	})
}

func FuzzParseFault(f *testing.F) {
	f.Add([]byte(`{"status":503,"requests":1,"stall":"forever","slow_factor":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		fault, err := parseFault(body)
		if err == nil && (fault.FirstByteDelay < 0 || fault.Stall < -1 || fault.Status != 0 && (fault.Status < 200 || fault.Status > 599)) {
			t.Errorf("accepted as %+v", fault)
		}
	})
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\u2028<&>\x00é\xff")
	f.Fuzz(func(t *testing.T, s string) {
		b := appendString(nil, s)
		var back string
		if err := json.Unmarshal(b, &back); err != nil || back != strings.ToValidUTF8(s, "\uFFFD") && utf8.ValidString(s) {
			t.Errorf("%q is written as %s: %q, %v", s, b, back, err)
		}
	})
}
