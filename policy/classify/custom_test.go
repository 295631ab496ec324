package classify

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// only is a configuration of custom detectors alone.
func only(custom ...Custom) Config {
	return Config{MaxBytes: 1 << 20, Budget: time.Minute, Custom: custom}
}

// TestCustom gives detectors of patterns and keywords texts and expects hits.
func TestCustom(t *testing.T) {
	f := func(d Custom, text string, want int64) {
		t.Helper()
		d.Name, d.Label = "d", "d"
		if got := scanText(mustNew(t, only(d)), text).Findings["d"]; got != want {
			t.Errorf("%q%q in %q: %d, want %d", d.Patterns, d.Keywords, text, got, want)
		}
	}
	pattern := func(expr, text string, want int64) {
		t.Helper()
		f(Custom{Patterns: []string{expr}}, text, want)
	}
	pattern(`\bEMP-\d{6}\b`, "EMP-123456, EMP-1234567 and xEMP-123456; EMP-654321", 2)
	pattern(`(?i)project falcon`, "Project FALCON", 1)
	pattern(`^secret$`, "secret", 1)
	pattern(`^secret$`, "no\nsecret", 0)
	pattern(`(?m)^secret$`, "no\nsecret", 1)
	pattern(`é`, "e\u0301", 1) // NFKC
	pattern(`ab`, "a\u200bb", 1)
	pattern(`[0-9]{4}`, "１２３４", 1)
	f(Custom{Patterns: []string{"a", "b"}}, "a b a", 3)

	word := func(keyword, text string, want int64) {
		t.Helper()
		f(Custom{Keywords: []string{keyword}}, text, want)
	}
	word("falcon", "Falcon, FALCON! falcons falcon_x falcon-x", 3)
	word("Falcon", "falcon", 1)
	word("project falcon", "Project\nFalcon", 1)
	word("blue harbour", "Blue  harbour, blue\n\t harbour and blue  harbours", 2)
	word("blue  harbour", "blue harbour", 1)
	word("a b c", "a  b   c a b  c", 2)
	word("blue harbour", "blue\u00a0\u00a0harbour", 1)
	word("c++", "C++ and c++.", 2)
	word("Straße", "straße STRASSE", 1) // no folding of one letter to two
	word("Ёлка", "ёлка ЁЛКА ёлками", 2)
	word("機密", "これは機密です", 1)
	word("σας", "ΣΑΣ", 1)
	word("café", "cafe\u0301", 1)
	word("ﬁle", "FILE", 1)
	f(Custom{Keywords: []string{"he", "she", "his", "hers"}}, "she said his and hers", 3)
	f(Custom{Keywords: []string{"ab cd", "cd"}}, "ab cd", 2)
	f(Custom{Keywords: []string{"ab", "ab"}}, "ab", 1)
	f(Custom{Keywords: []string{"ab"}, Patterns: []string{"ab"}}, "ab", 2)

	for _, parts := range []string{`{"text":"project "},{"text":"falcon"}`, `{"text":"project"},{"text":"\n falcon"}`} {
		c := mustNew(t, only(Custom{Name: "d", Label: "d", Keywords: []string{"project falcon"}}))
		if got := scanBody(c, `{"messages":[{"content":[`+parts+`]}]}`).Findings["d"]; got != 1 {
			t.Errorf("over parts %s there are %d hits, want 1", parts, got)
		}
	}

	// A soft break is a line break.
	body := `{"messages":[{"content":[{"text":"project"},{"text":"falcon"}]}]}`
	c := mustNew(t, only(Custom{Name: "d", Label: "d", Keywords: []string{"project falcon"}, Patterns: []string{`project\nfalcon`, `(?m)^falcon$`}}))
	if got := scanBody(c, body).Findings["d"]; got != 3 {
		t.Errorf("over a soft break there are %d hits, want 3", got)
	}
}

// TestPatternChunks compares patterns over text in chunks with the text in one
// piece, where a match never ends and another begins in the middle of a word.
func TestPatternChunks(t *testing.T) {
	exprs := []string{`\b\w+ing\b`, `(?m)^\w+`, `(?m)\w$`, `\d+-\d+`, `[a-c]+\n[a-c]+`, `\Ba\B`, `^a`, `b\z`, `(a|ab)(c|bcd)`}
	c := mustNew(t, only(Custom{Name: "d", Label: "d", Keywords: []string{"x"}}))
	rapid.Check(t, func(rt *rapid.T) {
		expr := rapid.SampledFrom(exprs).Draw(rt, "expr")
		p, err := compilePattern(expr)
		if err != nil {
			rt.Fatal(err)
		}
		p.chunk = rapid.IntRange(1, 40).Draw(rt, "chunk")
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "ab", "abc", "bcd", "12-34", "going", "thing", "\n", "é"}), 0, 60).Draw(rt, "words")
		text := strings.Join(words, rapid.SampledFrom([]string{" ", "\n", " \n"}).Draw(rt, "between"))
		s := c.pool.Get().(*scan)
		defer s.release()
		s.begin(context.Background(), &Request{})
		if got, want := p.count(s, []byte(text)), int64(len(regexp.MustCompile(expr).FindAllString(text, -1))); got != want {
			rt.Fatalf("%s in %q by %d: %d, want %d", expr, text, p.chunk, got, want)
		}
	})
}

// TestKeywordsAgainstSearch compares the automaton with a plain search.
func TestKeywordsAgainstSearch(t *testing.T) {
	letter := rapid.SampledFrom([]string{"a", "b", "B", " ", "é", "É", "漢", "_", "-"})
	word := rapid.Custom(func(rt *rapid.T) string {
		w := strings.TrimSpace(strings.Join(rapid.SliceOfN(letter, 1, 4).Draw(rt, "w"), ""))
		if w == "" {
			return "a"
		}
		return w
	})
	rapid.Check(t, func(rt *rapid.T) {
		words := rapid.SliceOfNDistinct(word, 1, 6, func(w string) string { return strings.ToLower(w) }).Draw(rt, "words")
		text := strings.Join(rapid.SliceOfN(letter, 0, 40).Draw(rt, "text"), "")
		c, err := New(only(Custom{Name: "d", Label: "d", Keywords: words}))
		if err != nil {
			rt.Fatal(err)
		}
		var want int64
		spaces := regexp.MustCompile(" +")
		low := spaces.ReplaceAllString(strings.ToLower(text), " ")
		seen := map[string]bool{}
		for _, w := range words {
			w = spaces.ReplaceAllString(strings.ToLower(w), " ")
			if seen[w] {
				continue
			}
			seen[w] = true
			for i := range low {
				if strings.HasPrefix(low[i:], w) && wholeWord([]byte(low), i, i+len(w)) {
					want++
				}
			}
		}
		if got := scanText(c, text).Findings["d"]; got != want {
			rt.Fatalf("%q in %q: %d, want %d", words, text, got, want)
		}
	})
}

// TestPatternsHeedTheClock checks that a dear pattern ends with the budget.
func TestPatternsHeedTheClock(t *testing.T) {
	cfg := only(Custom{Name: "d", Label: "d", Patterns: []string{`(x{0,9}y{0,9}){0,9}z`}, Keywords: []string{"q"}})
	cfg.Budget = 10 * time.Millisecond
	c := mustNew(t, cfg)
	now := time.Unix(0, 0)
	looks := 0
	c.now = func() time.Time { looks++; now = now.Add(4 * time.Millisecond); return now }
	if got := scanText(c, strings.Repeat("xy", 1<<19)); got.ScanStatus != StatusTimeout {
		t.Errorf("the scan is %s after %d looks at the clock", got.ScanStatus, looks)
	}
	if looks > 5 {
		t.Errorf("the clock was looked at %d times, want the scan to end after 3", looks)
	}
}

// TestConfigFaults gives every fault of a configuration and the words in which
// it is reported.
func TestConfigFaults(t *testing.T) {
	many := func(n int, f func(i int) string) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = f(i)
		}
		return out
	}
	custom := func(d Custom) func(*Config) {
		return func(c *Config) {
			if d.Name == "" {
				d.Name = "d"
			}
			d.Label = "l"
			c.Custom = []Custom{d}
		}
	}
	for _, test := range []struct {
		edit func(*Config)
		want string
	}{
		{func(c *Config) { c.MaxBytes = 0 }, "maxBytes: 0 is out of range: use 1 to 67108864 bytes"},
		{func(c *Config) { c.Budget = 0 }, "budget: 0s is no time: use more than 0, such as 50ms"},
		{func(c *Config) { c.Builtin[0].Detector = "cards" }, `builtin[0]: "cards" is no built-in detector: use one of email, iban, payment-card, phone, private-key, secret, us-ssn`},
		{func(c *Config) { c.Builtin[1] = c.Builtin[0] }, `builtin[1]: the name "payment-card" is taken by builtin[0]`},
		{func(c *Config) { c.Builtin[2].Label = "PII" }, `builtin[2].label: "PII" is no label: use 1 to 63 of a-z, 0-9 and -, not - at either end`},
		{func(c *Config) { c.Custom = []Custom{{Name: "d", Keywords: []string{"x"}}} }, `custom[0].label: "" is no label: use 1 to 63 of a-z, 0-9 and -, not - at either end`},
		{custom(Custom{Name: "a b", Keywords: []string{"x"}}), `custom[0].name: "a b" is no name: use 1 to 63 of a-z, 0-9 and -, not - at either end`},
		{custom(Custom{Name: "email", Keywords: []string{"x"}}), `custom[0].name: "email" is the name of a built-in detector: use another`},
		{custom(Custom{}), "custom[0]: it has neither patterns nor keywords: give one of them"},
		{custom(Custom{Patterns: []string{"a", "("}}), "custom[0].patterns[1]: not a usable RE2 pattern: error parsing regexp: missing closing ): `(`"},
		{custom(Custom{Patterns: []string{"a*"}}), "custom[0].patterns[0]: it matches the empty text, so every body has it: ask for at least a character"},
		{custom(Custom{Patterns: []string{"a{700}b{700}"}}), "custom[0].patterns[0]: not a usable RE2 pattern: it compiles to 1402 instructions, at most 1000 are allowed: shorten counted repetitions"},
		{custom(Custom{Patterns: []string{strings.Repeat("a", 5000)}}), "custom[0].patterns[0]: 5000 bytes are too long: at most 4096"},
		{custom(Custom{Patterns: many(65, func(int) string { return "a" })}), "custom[0].patterns: 65 are too many: at most 64"},
		{custom(Custom{Keywords: []string{"x", "\u200b"}}), "custom[0].keywords[1]: it is empty: give a word"},
		{custom(Custom{Keywords: []string{"x "}}), "custom[0].keywords[0]: it begins or ends with a space: a keyword is a whole word anyway"},
		{custom(Custom{Keywords: []string{strings.Repeat("x", 257)}}), "custom[0].keywords[0]: 257 bytes are too long: at most 256"},
		{custom(Custom{Keywords: many(10_001, func(int) string { return "a" })}), "custom[0].keywords: 10001 are too many: at most 10000"},
		{custom(Custom{Keywords: many(1000, func(i int) string { return fmt.Sprintf("%066d", i) })}), "custom[0].keywords: 66000 bytes together are too many: at most 65536, so use several detectors"},
		{func(c *Config) { c.External = []External{nil} }, "external[0]: there is no detector"},
		{func(c *Config) { c.External = []External{fake{name: "A"}} }, `external[0].name: "A" is no name: use 1 to 63 of a-z, 0-9 and -, not - at either end`},
		{func(c *Config) { c.External = []External{fake{name: "x"}, fake{name: "x"}} }, `external[1]: the name "x" is taken by external[0]`},
		{func(c *Config) {
			for i := range 60 {
				c.Custom = append(c.Custom, Custom{Name: fmt.Sprint("d", i), Label: "l", Keywords: []string{"x"}})
			}
		}, "67 detectors are too many: at most 64"},
		{func(c *Config) { c.MaxBytes, c.Budget = -1, -1 }, "maxBytes: -1 is out of range: use 1 to 67108864 bytes\nbudget: -1ns is no time: use more than 0, such as 50ms"},
	} {
		cfg := DefaultConfig()
		test.edit(&cfg)
		c, err := New(cfg)
		if err == nil || c != nil || err.Error() != test.want {
			t.Errorf("New gives %v, want %s", err, test.want)
		}
		if v := cfg.Validate(); v == nil || v.Error() != test.want {
			t.Errorf("Validate gives %v, want %s", v, test.want)
		}
	}
}

// TestDefaultConfig checks that the defaults compile and name every detector.
func TestDefaultConfig(t *testing.T) {
	cfg := DefaultConfig()
	if got := mustNew(t, cfg).Detectors(); fmt.Sprint(got) != fmt.Sprint(Builtins()) {
		t.Errorf("the defaults switch on %v, want %v", got, Builtins())
	}
	if cfg.MaxBytes != 1<<20 || cfg.Budget != 50*time.Millisecond {
		t.Errorf("the default budget is %d bytes and %s", cfg.MaxBytes, cfg.Budget)
	}
}
