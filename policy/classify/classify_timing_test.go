package classify

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
)

// timedBodies are bodies of about 256 KiB, most of it text, of several kinds.
func timedBodies(tb testing.TB) map[string][]byte {
	tb.Helper()
	const size = 256 << 10
	m := maker{rand.New(rand.NewPCG(11, 12))}
	fill := func(of func() string) string {
		var b strings.Builder
		for b.Len() < size {
			b.WriteString(of())
		}
		return b.String()
	}
	words := strings.Fields("the of gateway request when tokens a prefix cache, and worker. It policy tenant said for with model which answer in no time because each block is hashed.")
	prose := fill(func() string { return m.pick(words...) + " " })
	code := fill(func() string {
		return m.pick("\tif err != nil {\n\t\treturn fmt.Errorf(\"cannot read: %w\", err)\n\t}\n", "\tfor i := range n_rows {\n\t\tx[i] += a.b.c(y_0, 1)\n\t}\n",
			"def load_model(path, *, dtype=None):\n    return cls.from_file(path, dtype)\n", "    const { a, b } = await fetch(`/v1/items/${id}`);\n")
	})
	numbers := fill(func() string { return m.number(1+m.IntN(5)) + m.pick(",", " ", "\n", ", ", ".5 ") })
	identifiers := fill(func() string {
		return m.pick(m.number(10), m.value("uuid"), m.number(16), m.value("datetime")) + m.pick(",", "\n")
	})
	chinese := fill(func() string {
		return m.pick("网关接收请求，", "然后按策略选择工作节点。", "缓存的前缀越长，", "第一个词元来得越快。")
	})
	chat := fill(func() string {
		return m.pick("Das wäre schön… ", "🙂 Voilà, c’est ça\u00a0! ", "“Quoted” — so it goes. ", "Ну и хорошо. ")
	})
	hindi := fill(func() string {
		return m.pick("नमस्ते दुनिया, ", "यह एक परीक्षण है। ")
	})
	var messages []any
	for n := 0; n < size; n += 2048 {
		messages = append(messages, map[string]any{"role": m.pick("user", "assistant"), "content": prose[n : n+2048]})
	}
	many, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		tb.Fatal(err)
	}
	return map[string][]byte{
		"prose":       []byte(message(prose)),
		"messages":    many,
		"code":        []byte(message(code)),
		"numbers":     []byte(message(numbers)),
		"identifiers": []byte(message(identifiers)),
		"chinese":     []byte(message(chinese)),
		"chat":        []byte(message(chat)),
		"hindi":       []byte(message(hindi)),
		"json":        []byte(message(string(many))),
		"image":       []byte(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + m.from(digitChars+lowerChars, size) + `"}}]}]}`),
	}
}

// BenchmarkScan measures all built-in detectors over whole bodies, and three ways
// to get through the same bytes as baselines: encoding/json's syntax check, a
// search for a byte that isn't there, and regular expressions for the same
// findings without their checks.
func BenchmarkScan(b *testing.B) {
	bodies := timedBodies(b)
	c := mustNew(b, each())
	expressions := regexp.MustCompile(`\b(?:\d[ -]?){13,19}\b|\b[A-Z]{2}\d{2}[A-Z0-9 ]{11,30}\b|\b\d{3}-\d{2}-\d{4}\b|[\w.+-]+@[\w-]+\.[\w.]+|\+\d[\d ()-]{6,20}|-----BEGIN [A-Z ]*PRIVATE KEY|\b(?:AKIA|ghp_|sk-)\w{16,}`)
	for _, kind := range []string{"prose", "messages", "code", "numbers", "identifiers", "chinese", "chat", "hindi", "json", "image"} {
		body := bodies[kind]
		run := func(name string, f func()) {
			b.Run(kind+"/"+name, func(b *testing.B) { timed(b, len(body), f) })
		}
		r := &Request{Body: body}
		run("scan", func() { c.Scan(context.Background(), r) })
		run("json.Valid", func() { json.Valid(body) })
		run("bytes.IndexByte", func() { bytes.IndexByte(body, 0) })
		run("regexp", func() { expressions.FindAllIndex(body, -1) })
	}
}

// BenchmarkPrefilter measures the detectors alone, over text that holds nothing.
func BenchmarkPrefilter(b *testing.B) {
	c := mustNew(b, each())
	for _, kind := range []string{"prose", "code", "numbers", "identifiers"} {
		text := timedBodies(b)[kind]
		b.Run(kind, func(b *testing.B) {
			hits := make([]int64, builtinCount)
			timed(b, len(text), func() { c.builtin.scan(hits, text, 0, len(text), -1) })
		})
	}
}

// BenchmarkCustom measures patterns and many keywords.
func BenchmarkCustom(b *testing.B) {
	m := maker{rand.New(rand.NewPCG(13, 14))}
	words := make([]string, 1000)
	for i := range words {
		words[i] = m.from(lowerChars, 5+m.IntN(8))
	}
	body := timedBodies(b)["prose"]
	for name, d := range map[string]Custom{
		"keywords": {Name: "d", Label: "d", Keywords: words},
		"pattern":  {Name: "d", Label: "d", Patterns: []string{`\bEMP-\d{6}\b`}},
	} {
		c := mustNew(b, Config{MaxBytes: 1 << 20, Budget: time.Minute, Custom: []Custom{d}})
		b.Run(name, func(b *testing.B) {
			timed(b, len(body), func() { c.Scan(context.Background(), &Request{Body: body}) })
		})
	}
}
