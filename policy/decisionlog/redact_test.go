package decisionlog

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/policy"
)

var usage = policy.Usage{InputTokens: 1, Complete: true}

func TestRedaction(t *testing.T) {
	const record = `{"type":"decision","input":{"request":{"n":1,"user":"u\"1","stream":true,"max_tokens":-1.5e3,"tool_names":["a","b","c"],"headers":{"x-app":"demo","a/b":"1","t~e":"2","\u2028":"3"}},"tenant":{"labels":{}}},"denials":[{"rule":"p/v"},{"rule":"p/w"}],"message":null}`
	for _, c := range []struct {
		name       string
		mask, drop []string
		want       string // what is not as in record
	}{
		{"nothing meets", []string{"/input/content/labels"}, []string{"/pool"}, record},
		{"mask text", []string{"/input/request/user"}, nil, strings.Replace(record, `"u\"1"`, `"***"`, 1) + `,"masked":["/input/request/user"]`},
		{"mask number and bool", []string{"/input/request/max_tokens", "/input/request/stream"}, nil, strings.Replace(record, `"stream":true,"max_tokens":-1.5e3`, `"stream":null,"max_tokens":null`, 1) + `,"masked":["/input/request/stream","/input/request/max_tokens"]`},
		{"mask list", []string{"/input/request/tool_names"}, nil, strings.Replace(record, `["a","b","c"]`, `["***","***","***"]`, 1) + `,"masked":["/input/request/tool_names"]`},
		{"mask map", []string{"/input/request/headers"}, nil, strings.Replace(record, `{"x-app":"demo","a/b":"1","t~e":"2","\u2028":"3"}`, `{"x-app":"***","a/b":"***","t~e":"***","\u2028":"***"}`, 1) + `,"masked":["/input/request/headers"]`},
		{"mask empty", []string{"/input/tenant/labels"}, nil, record + `,"masked":["/input/tenant/labels"]`},
		{"drop first", nil, []string{"/input/request/n"}, strings.Replace(record, `"n":1,`, ``, 1) + `,"erased":["/input/request/n"]`},
		{"drop last", nil, []string{"/message"}, strings.Replace(record, `,"message":null`, ``, 1) + `,"erased":["/message"]`},
		{"drop all members", nil, []string{"/input/request", "/input/tenant"}, `{"type":"decision","input":{},"denials":[{"rule":"p/v"},{"rule":"p/w"}],"message":null},"erased":["/input/request","/input/tenant"]`},
		{"drop elements", nil, []string{"/input/request/tool_names/0", "/input/request/tool_names/2"}, strings.Replace(record, `["a","b","c"]`, `["b"]`, 1) + `,"erased":["/input/request/tool_names/0","/input/request/tool_names/2"]`},
		{"element's member", []string{"/denials/1/rule"}, nil, strings.Replace(record, `"p/w"`, `"***"`, 1) + `,"masked":["/denials/1/rule"]`},
		{"escaped names", []string{"/input/request/headers/a~1b"}, []string{"/input/request/headers/t~0e"}, strings.Replace(record, `"a/b":"1","t~e":"2"`, `"a/b":"***"`, 1) + `,"masked":["/input/request/headers/a~1b"],"erased":["/input/request/headers/t~0e"]`},
		{"name in another spelling", nil, []string{"/input/request/headers/\u2028"}, strings.Replace(record, `,"\u2028":"3"`, ``, 1) + `,"erased":["/input/request/headers/` + `\u2028` + `"]`},
		{"drop within mask", []string{"/input/request/headers"}, []string{"/input/request/headers/x-app"}, strings.Replace(record, `{"x-app":"demo","a/b":"1","t~e":"2","\u2028":"3"}`, `{"a/b":"***","t~e":"***","\u2028":"***"}`, 1) + `,"masked":["/input/request/headers"],"erased":["/input/request/headers/x-app"]`},
		{"mask within drop", []string{"/input/request/headers/x-app"}, []string{"/input/request"}, `{"type":"decision","input":{"tenant":{"labels":{}}},"denials":[{"rule":"p/v"},{"rule":"p/w"}],"message":null},"erased":["/input/request"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := c.want
			if i := strings.Index(want, `},"masked"`); i >= 0 {
				want = want[:i] + want[i+1:] + "}"
			} else if i := strings.Index(want, `},"erased"`); i >= 0 {
				want = want[:i] + want[i+1:] + "}"
			}
			if got := string(newRedaction(c.mask, c.drop).apply([]byte(record))); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	if newRedaction(nil, nil) != nil {
		t.Error("no pointers make a redaction")
	}
}

// TestPointersIntoRecords: pointers meet the values of real records, at every
// depth and of every kind, and the records say so.
func TestPointersIntoRecords(t *testing.T) {
	set, in := testSet(t), testInput("erring")
	d := set.Decide(t.Context(), in)
	for _, hide := range []func(c *Config, pointer string){
		func(c *Config, p string) { c.Mask = []string{p} }, func(c *Config, p string) { c.Drop = []string{p} },
	} {
		for _, p := range []string{
			"/request_id", "/gateway", "/input", "/input/request/user", "/input/request/headers/x-app", "/input/principal/groups", "/input/principal/claims/dept",
			"/input/tenant/labels", "/rule", "/message", "/denials", "/errors/0/rule", "/effective/pools/0", "/limits", "/annotations", "/cost", "/lazy", "/duration_us", "/reason", "/status",
		} {
			l := testLog(t, func(c *Config) { hide(c, p) })
			l.Decided("id", "r-1", testTime, in, d)
			finish(t, l)
			got := readLines(t, l.cfg.Path)[0]
			if want := []string{p}; !slices.Equal(got.Masked, want) && !slices.Equal(got.Erased, want) {
				t.Errorf("%s: masked %v, erased %v: %s", p, got.Masked, got.Erased, got.text)
			}
		}
	}
	l := testLog(t, func(c *Config) { c.Mask, c.Drop = []string{"/usage"}, []string{"/pool"} })
	l.Settled("id", testTime, "completed", "pool-name", 0, policy.Usage{InputTokens: 4711}, d, nil, nil)
	l.Rehearsed("id", testTime, policy.RehearsalOutcome{LogInFull: true})
	finish(t, l)
	if got := string(readFile(t, l.cfg.Path)); strings.Contains(got, "pool-name") || strings.Contains(got, "4711") || strings.Count(got, "masked") != 1 {
		t.Error(got)
	}
}

// FuzzRedaction: whatever a record holds, what is left is JSON, what was named
// is gone, and the rest is as it was.
func FuzzRedaction(f *testing.F) {
	f.Add(`{"a":{"b":[1,"x"]},"c":null}`, "/a/b/0", "/a/c")
	f.Add(`{"a/b":"{\"}","":[[],{}]}`, "/a~1b", "/")
	f.Add(`{"\\\"":[-0.1e+5,true,false]}`, `/\"/1`, `/x`)
	f.Fuzz(func(t *testing.T, text, masked, erased string) {
		var doc map[string]any
		if json.Unmarshal([]byte(text), &doc) != nil || doc == nil || masked == erased {
			return
		}
		for _, p := range []string{masked, erased} {
			if _, err := splitPointer(p); err != nil {
				return
			}
		}
		src, err := json.Marshal(doc) // as the records are: no white space, no repeated names
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		out := newRedaction([]string{masked}, []string{erased}).apply(src)
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, hadMasked := doc["masked"]
		_, hadErased := doc["erased"]
		if !hadMasked {
			delete(got, "masked")
		}
		if !hadErased {
			delete(got, "erased")
		}
		if hadMasked || hadErased {
			return // not names of a record
		}
		want := reference(doc, mustSplit(masked), mustSplit(erased))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %v\nwant %v\nfrom %s", got, want, src)
		}
	})
}

func mustSplit(p string) []string {
	parts, err := splitPointer(p)
	if err != nil {
		panic(err)
	}
	return parts
}

// reference does on decoded values what the editor does on text. A path that
// has left its pointer is nil.
func reference(v any, masked, erased []string) any {
	follow := func(path []string, name string) []string {
		if len(path) == 0 || path[0] != name {
			return nil
		}
		return path[1:]
	}
	at := func(path []string) bool { return path != nil && len(path) == 0 }
	edit := func(name string, value any) (any, bool) {
		m, e := follow(masked, name), follow(erased, name)
		if at(e) {
			return nil, false
		}
		value = reference(value, m, e)
		if at(m) {
			value = hidden(value)
		}
		return value, true
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			if value, ok := edit(name, value); ok {
				out[name] = value
			}
		}
		return out
	case []any:
		out := []any{}
		for i, value := range v {
			if value, ok := edit(jsonIndex(i), value); ok {
				out = append(out, value)
			}
		}
		return out
	}
	return v
}

func jsonIndex(i int) string {
	b, _ := json.Marshal(i)
	return string(b)
}

func hidden(v any) any {
	switch v := v.(type) {
	case string:
		return "***"
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			out[name] = hidden(value)
		}
		return out
	case []any:
		out := []any{}
		for _, value := range v {
			out = append(out, hidden(value))
		}
		return out
	}
	return nil
}
