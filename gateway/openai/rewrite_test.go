package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

func TestAppendRewrite(t *testing.T) {
	var req wire.Request
	f := func(op wire.Operation, m wire.Mutation, body, want string) {
		t.Helper()
		if err := Scan(&req, op, []byte(body)); err != nil {
			t.Errorf("Scan(%s) fails: %v", body, err)
			return
		}
		if got := string(AppendRewrite([]byte("before"), []byte(body), &req, m)); got != "before"+want {
			t.Errorf("%+v of %s\n got %s\nwant before%s", m, body, got, want)
		}
	}
	chat := func(m wire.Mutation, body, want string) {
		t.Helper()
		const messages = `"messages":[],`
		f(wire.Chat, m, `{`+messages+body+`}`, `{`+messages+want+`}`)
	}
	// Nothing to do.
	chat(wire.Mutation{}, ` "model" : "m" , "x" : 1.0e5 `, ` "model" : "m" , "x" : 1.0e5 `)

	// The model.
	alias := wire.Mutation{Model: new("w\"k/é")}
	chat(alias, `"model":"m","x":1`, `"model":"w\"k/é","x":1`)
	chat(alias, "\"mod\\u0065l\" :\t\"m\" \n,\"x\":1", "\"mod\\u0065l\" :\t\"w\\\"k/é\" \n,\"x\":1")
	chat(wire.Mutation{Model: new("m/n")}, `"model":"m\/n"`, `"model":"m\/n"`)

	// The limit of tokens.
	five := wire.Mutation{MaxTokens: new(int64(5))}
	chat(five, `"model":"m"`, `"model":"m","max_tokens":5`)
	chat(five, `"model":"m" `, `"model":"m","max_tokens":5 `)
	chat(five, `"max_tokens":100,"model":"m"`, `"max_tokens":5,"model":"m"`)
	chat(five, `"max_tokens":null,"model":"m"`, `"max_tokens":5,"model":"m"`)
	chat(five, `"max_completion_tokens":1e2,"model":"m"`, `"max_completion_tokens":5,"model":"m"`)
	chat(five, `"max_completion_tokens":100,"max_tokens":200,"model":"m"`, `"max_completion_tokens":5,"max_tokens":5,"model":"m"`)
	chat(five, `"max_tokens":5.0,"model":"m"`, `"max_tokens":5.0,"model":"m"`)
	chat(five, `"max_output_tokens":9,"model":"m"`, `"max_output_tokens":9,"model":"m","max_tokens":5`)
	f(wire.Completion, five, `{"model":"m"}`, `{"model":"m","max_tokens":5}`)
	f(wire.Completion, five, `{"max_completion_tokens":9,"model":"m"}`, `{"max_completion_tokens":5,"model":"m","max_tokens":5}`)
	f(wire.Completion, five, `{"max_completion_tokens":9,"max_tokens":1,"model":"m"}`, `{"max_completion_tokens":5,"max_tokens":5,"model":"m"}`)

	// The number of choices.
	two := wire.Mutation{N: new(int64(2))}
	chat(two, `"n":3,"model":"m"`, `"n":2,"model":"m"`)
	chat(two, `"n":1,"best_of":9,"model":"m"`, `"n":1,"best_of":2,"model":"m"`)
	chat(two, `"n":2.0,"best_of":null,"model":"m"`, `"n":2.0,"best_of":null,"model":"m"`)
	chat(two, `"model":"m"`, `"model":"m"`)

	// Salt and priority.
	salt := wire.Mutation{CacheSalt: new("A_-9")}
	chat(salt, `"model":"m"`, `"model":"m","cache_salt":"A_-9"`)
	chat(salt, `"cache_salt":"mine","model":"m"`, `"cache_salt":"A_-9","model":"m"`)
	chat(salt, `"cache_salt":null,"model":"m"`, `"cache_salt":"A_-9","model":"m"`)
	chat(wire.Mutation{Priority: new(int64(-3))}, `"priority":9,"model":"m"`, `"priority":-3,"model":"m"`)
	chat(wire.Mutation{Priority: new(int64(0))}, `"model":"m"`, `"model":"m","priority":0`)

	// Removals.
	none := wire.Mutation{RemoveCacheSalt: true, RemovePriority: true}
	f(wire.Completion, none, `{"model":"m"}`, `{"model":"m"}`)
	f(wire.Completion, none, `{"priority":1,"model":"m"}`, `{"model":"m"}`)
	f(wire.Completion, none, `{ "priority" : 1 , "model":"m" }`, `{  "model":"m" }`)
	f(wire.Completion, none, `{"model":"m","priority":1}`, `{"model":"m"}`)
	f(wire.Completion, none, `{"model":"m" , "priority" : 1 }`, `{"model":"m"  }`)
	f(wire.Completion, none, `{"model":"m","priority":null,"x":1}`, `{"model":"m","x":1}`)
	f(wire.Completion, none, `{"priority":1,"cache_salt":"s","model":"m"}`, `{"model":"m"}`)
	f(wire.Completion, none, `{"cache_salt":"s","priority":1,"model":"m","x":1}`, `{"model":"m","x":1}`)
	f(wire.Completion, none, `{"model":"m","priority":1,"cache_salt":"s"}`, `{"model":"m"}`)
	f(wire.Completion, none, `{"model":"m","cache_salt":"s","x":1,"priority":1}`, `{"model":"m","x":1}`)
	f(wire.Completion, none, `{"cache_salt":"a,b}","x":1,"priority":1,"model":"m"}`, `{"x":1,"model":"m"}`)
	f(wire.Completion, wire.Mutation{RemovePriority: true, CacheSalt: new("z"), MaxTokens: new(int64(1))},
		`{"model":"m","priority":1}`, `{"model":"m","max_tokens":1,"cache_salt":"z"}`)
	f(wire.Completion, wire.Mutation{RemovePriority: true, Model: new("w")}, `{"priority":1,"model":"m"}`, `{"model":"w"}`)

	// Usage.
	usage := wire.Mutation{InjectUsage: true}
	stream := func(options, want string) {
		t.Helper()
		if options != "" {
			options = `,"stream_options":` + options
		}
		chat(usage, `"stream":true`+options+`,"model":"m"`, `"stream":true`+want+`,"model":"m"`)
	}
	chat(usage, `"model":"m","stream":true`, `"model":"m","stream":true,"stream_options":{"include_usage":true}`)
	stream(`null`, `,"stream_options":{"include_usage":true}`)
	stream(`{}`, `,"stream_options":{"include_usage":true}`)
	stream(`{ }`, `,"stream_options":{"include_usage":true }`)
	stream(`{"x":1 }`, `,"stream_options":{"x":1,"include_usage":true }`)
	stream(`{"include_usage":false,"x":1}`, `,"stream_options":{"include_usage":true,"x":1}`)
	stream(`{"x":1,"includ\u0065_usage" : null}`, `,"stream_options":{"x":1,"includ\u0065_usage" : true}`)
	stream(`{"include_usage":true,"continuous_usage_stats":true}`, `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)
	stream(`{"continuous_usage_stats":true}`, `,"stream_options":{"continuous_usage_stats":false,"include_usage":true}`)
	stream(`{"continuous_usage_stats":true,"include_usage":false}`, `,"stream_options":{"continuous_usage_stats":false,"include_usage":true}`)
	stream(`{"continuous_usage_stats":false}`, `,"stream_options":{"continuous_usage_stats":false,"include_usage":true}`)
	chat(usage, `"model":"m"`, `"model":"m"`)
	chat(usage, `"model":"m","stream":false,"stream_options":{"include_usage":false}`, `"model":"m","stream":false,"stream_options":{"include_usage":false}`)

	// All at once, keys in an odd order, duplicates of keys nobody reads.
	all := wire.Mutation{Model: new("w"), MaxTokens: new(int64(5)), N: new(int64(1)), CacheSalt: new("z"), RemovePriority: true, InjectUsage: true}
	f(wire.Chat, all, `{"x":1,"priority":2,"n":3,"x":2,"stream_options":{"x":[{}]},"messages":[{"content":"{\"model\":\"no\"}"}],"model":"m","stream":true}`,
		`{"x":1,"n":1,"x":2,"stream_options":{"x":[{}],"include_usage":true},"messages":[{"content":"{\"model\":\"no\"}"}],"model":"w","stream":true,"max_tokens":5,"cache_salt":"z"}`)
}

func TestAppendRewriteBugs(t *testing.T) {
	body := []byte(`{"model":"m"}`)
	f := func(what string, call func(req *wire.Request)) {
		t.Helper()
		var req wire.Request
		if err := Scan(&req, wire.Completion, body); err != nil {
			t.Fatal(err)
		}
		defer func() {
			t.Helper()
			if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "BUG: ") {
				t.Errorf("%s: no panic that says BUG", what)
			}
		}()
		call(&req)
	}
	f("another body", func(req *wire.Request) { AppendRewrite(nil, []byte(`{}`), req, wire.Mutation{}) })
	f("no scan", func(req *wire.Request) { req.Reset(); AppendRewrite(nil, body, req, wire.Mutation{}) })
	f("salt set and removed", func(req *wire.Request) {
		AppendRewrite(nil, body, req, wire.Mutation{CacheSalt: new("x"), RemoveCacheSalt: true})
	})
	f("priority set and removed", func(req *wire.Request) {
		AppendRewrite(nil, body, req, wire.Mutation{Priority: new(int64(1)), RemovePriority: true})
	})
}

// part is one member of a generated object, in pieces of text.
type part struct {
	name                    string // unescaped
	lead, key, colon, value string
	inner                   string // white space left by members taken out behind it
	end                     string
}

func (p part) text() string { return p.lead + p.key + p.colon + p.value + p.inner + p.end }

// drawObject draws an object with some of the named members, each at most once,
// among others that occur as often as they like.
func drawObject(t *rapid.T, label string, named map[string]*rapid.Generator[string], must ...string) []part {
	space := rapid.SampledFrom([]string{"", "", "", " ", "\n\t", "\r\n  "})
	names := slices.Sorted(maps.Keys(named))
	chosen := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, len(names), rapid.ID[string]).Draw(t, label+" names")
	for _, name := range must {
		if !slices.Contains(chosen, name) {
			chosen = append(chosen, name)
		}
	}
	for range rapid.IntRange(0, 4).Draw(t, label+" others") {
		chosen = append(chosen, "?")
	}
	chosen = rapid.Permutation(chosen).Draw(t, label+" order")
	var parts []part
	for _, name := range chosen {
		p := part{name: name, lead: space.Draw(t, "lead"), colon: space.Draw(t, "before") + ":" + space.Draw(t, "after"), end: space.Draw(t, "end")}
		if name == "?" {
			p.name = rapid.SampledFrom([]string{"x", "Model", "temperature", "seed", "a b", "modèle", "max_token"}).Draw(t, "other")
			p.value = otherValue.Draw(t, "value")
		} else {
			p.value = named[name].Draw(t, name)
		}
		p.key = drawKey(t, p.name)
		parts = append(parts, p)
	}
	return parts
}

// drawKey writes a name with some of its letters escaped.
func drawKey(t *rapid.T, name string) string {
	key := []byte{'"'}
	if rapid.IntRange(0, 3).Draw(t, "plain key") > 0 {
		return string(jsonscan.AppendQuoted(nil, name))
	}
	for _, r := range name {
		if r < 0x80 && rapid.Bool().Draw(t, "escape") {
			key = append(key, fmt.Sprintf(`\u%04X`, r)...)
			continue
		}
		key = append(key, string(r)...)
	}
	return string(append(key, '"'))
}

var otherValue = rapid.SampledFrom([]string{
	`1`, `1.0`, `-0.0E-5`, `18446744073709551616`, `"a\u0041\/,}"`, `"漢"`, `null`, `true`, `[]`, `{}`, `[ {"model" : "no", "model":2} , [ ] ]`,
	`{"stream_options":{"include_usage":false},"n":[1]}`,
})

var integerValue = rapid.SampledFrom([]string{`0`, `1`, `2`, `7`, `7.0`, `70e-1`, `2147483647`, `null`})

var boolValue = rapid.SampledFrom([]string{`true`, `false`, `null`})

func joinParts(parts []part, empty string) string {
	if len(parts) == 0 {
		return "{" + empty + "}"
	}
	var texts []string
	for _, p := range parts {
		texts = append(texts, p.text())
	}
	return "{" + strings.Join(texts, ",") + "}"
}

func drawMutation(t *rapid.T) wire.Mutation {
	maybe := func(label string) bool { return rapid.Bool().Draw(t, label) }
	var m wire.Mutation
	if maybe("set model") {
		m.Model = new(rapid.SampledFrom([]string{"m", "w", "org/w\"é"}).Draw(t, "model to set"))
	}
	if maybe("set max") {
		m.MaxTokens = new(rapid.Int64Range(0, 8).Draw(t, "max to set"))
	}
	if maybe("set n") {
		m.N = new(rapid.Int64Range(1, 3).Draw(t, "n to set"))
	}
	switch rapid.IntRange(0, 2).Draw(t, "salt") {
	case 1:
		m.CacheSalt = new("salt")
	case 2:
		m.RemoveCacheSalt = true
	}
	switch rapid.IntRange(0, 2).Draw(t, "priority") {
	case 1:
		m.Priority = new(rapid.Int64Range(-2, 2).Draw(t, "priority to set"))
	case 2:
		m.RemovePriority = true
	}
	m.InjectUsage = maybe("inject")
	return m
}

// TestAppendRewriteProperty builds bodies from pieces of text, so that it knows
// to the byte what a rewrite must give, and from that text to the value what
// the worker must read.
func TestAppendRewriteProperty(t *testing.T) {
	var req wire.Request
	rapid.Check(t, func(t *rapid.T) {
		op := rapid.SampledFrom([]wire.Operation{wire.Chat, wire.Completion}).Draw(t, "operation")
		options := drawObject(t, "options", map[string]*rapid.Generator[string]{
			"include_usage": boolValue, "continuous_usage_stats": boolValue,
		})
		emptyOptions := rapid.SampledFrom([]string{"", " "}).Draw(t, "empty options")
		optionsText := rapid.SampledFrom([]string{"null", joinParts(options, emptyOptions), joinParts(options, emptyOptions)}).Draw(t, "options text")
		parts := drawObject(t, "body", map[string]*rapid.Generator[string]{
			"model": rapid.SampledFrom([]string{`"m"`, `"\u006d"`}), "messages": rapid.SampledFrom([]string{`[]`, `[ {"content" : "x"}]`}),
			"stream": boolValue, "stream_options": rapid.Just(optionsText), "max_tokens": integerValue, "max_completion_tokens": integerValue,
			"n": integerValue, "best_of": integerValue, "priority": integerValue,
			"cache_salt": rapid.SampledFrom([]string{`null`, `"s,}"`}),
		}, "model", "messages")
		m := drawMutation(t)
		tail := rapid.SampledFrom([]string{"", "\n"}).Draw(t, "tail")
		body := tail + joinParts(parts, "") + tail
		if err := Scan(&req, op, []byte(body)); err != nil {
			t.Fatalf("Scan(%s) fails: %v", body, err)
		}
		got := string(AppendRewrite(nil, []byte(body), &req, m))
		wantParts := mutate(parts, options, emptyOptions, op, m)
		want := tail + joinParts(wantParts, "") + tail
		if got != want {
			t.Fatalf("%s\nof %s\n got %s\nwant %s", mutationText(m), body, got, want)
		}
		checkDocument(t, got, wantParts, op)
	})
}

func mutationText(m wire.Mutation) string {
	text, err := json.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// checkDocument checks that the standard library reads the rewritten body as
// the pieces say, and that it can be scanned again.
func checkDocument(t *rapid.T, body string, parts []part, op wire.Operation) {
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("the rewrite %s is no JSON: %v", body, err)
	}
	want := map[string]any{}
	for _, p := range parts {
		var v any
		if err := json.Unmarshal([]byte(p.value), &v); err != nil {
			t.Fatalf("the piece %s is no JSON: %v", p.value, err)
		}
		want[p.name] = v
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("the rewrite reads as %v, want %v", got, want)
	}
	if priority, ok := want["priority"].(float64); ok && priority < 0 {
		return // The gateway may send one to a worker, but no client to it.
	}
	var again wire.Request
	if err := Scan(&again, op, []byte(body)); err != nil {
		t.Fatalf("the rewrite %s is refused: %v", body, err)
	}
}

// mutate does to the pieces what a rewrite does to the text.
func mutate(parts, options []part, emptyOptions string, op wire.Operation, m wire.Mutation) []part {
	parts = append([]part(nil), parts...)
	value := func(name string) (int, any) {
		for i, p := range parts {
			if p.name == name {
				var v any
				if err := json.Unmarshal([]byte(p.value), &v); err != nil {
					panic(err)
				}
				return i, v
			}
		}
		return -1, nil
	}
	var added []part
	set := func(name, text string) {
		if i, _ := value(name); i >= 0 {
			parts[i].value = text
			return
		}
		added = append(added, part{name: name, key: `"` + name + `"`, colon: ":", value: text})
	}
	if m.Model != nil {
		if _, v := value("model"); v != *m.Model {
			set("model", string(jsonscan.AppendQuoted(nil, *m.Model)))
		}
	}
	if m.MaxTokens != nil {
		text := fmt.Sprint(*m.MaxTokens)
		i, v := value("max_tokens")
		j, w := value("max_completion_tokens")
		if i >= 0 && v != float64(*m.MaxTokens) || i < 0 && (j < 0 || op == wire.Completion) {
			set("max_tokens", text)
		}
		if j >= 0 && w != float64(*m.MaxTokens) {
			set("max_completion_tokens", text)
		}
	}
	if m.N != nil {
		for _, name := range []string{"n", "best_of"} {
			if _, v := value(name); v != nil && v.(float64) > float64(*m.N) {
				set(name, fmt.Sprint(*m.N))
			}
		}
	}
	if m.CacheSalt != nil {
		set("cache_salt", `"`+*m.CacheSalt+`"`)
	}
	if m.Priority != nil {
		set("priority", fmt.Sprint(*m.Priority))
	}
	if _, v := value("stream"); v == true && m.InjectUsage {
		i, v := value("stream_options")
		switch {
		case i < 0 || v == nil:
			set("stream_options", `{"include_usage":true}`)
		default:
			set("stream_options", mutateOptions(options, emptyOptions))
		}
	}
	return appendParts(removeParts(parts, m), added)
}

// removeParts takes members out. One that has a kept member before it goes with
// the comma before it and the white space behind that; one that has none, with
// the comma after it and the white space before that.
func removeParts(parts []part, m wire.Mutation) []part {
	var kept []part
	lead := ""
	for _, p := range parts {
		switch out := p.name == "cache_salt" && m.RemoveCacheSalt || p.name == "priority" && m.RemovePriority; {
		case !out:
			p.lead, lead = lead+p.lead, ""
			kept = append(kept, p)
		case len(kept) == 0:
			lead += p.lead
		default:
			last := &kept[len(kept)-1]
			last.inner, last.end = last.inner+last.end, p.end
		}
	}
	return kept
}

// appendParts adds members right behind the last one, before the white space
// that follows its value.
func appendParts(kept, added []part) []part {
	if len(added) > 0 {
		last := &kept[len(kept)-1]
		added[len(added)-1].end, last.end = last.end, ""
	}
	return append(kept, added...)
}

func mutateOptions(options []part, empty string) string {
	options = append([]part(nil), options...)
	include, continuous := -1, -1
	for i, p := range options {
		switch p.name {
		case "include_usage":
			include = i
		case "continuous_usage_stats":
			continuous = i
		}
	}
	if include >= 0 && options[include].value == "true" {
		return joinParts(options, empty)
	}
	if continuous >= 0 && options[continuous].value == "true" {
		options[continuous].value = "false"
	}
	usage := part{key: `"include_usage"`, colon: ":", value: "true"}
	switch {
	case include >= 0:
		options[include].value = "true"
	case len(options) == 0:
		usage.end = empty
		options = []part{usage}
	default:
		options = appendParts(options, []part{usage})
	}
	return joinParts(options, empty)
}
