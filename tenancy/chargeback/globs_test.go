package chargeback

import (
	"testing"

	"pgregory.net/rapid"
)

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, model string
		want        bool
	}{
		{"*", "", true}, {"*", "org/qwen", true}, {"qwen", "qwen", true}, {"qwen", "qwen3", false},
		{"qwen*", "qwen3", true}, {"qwen*", "org/qwen3", false}, {"*/qwen*", "org/qwen3", true}, {"**", "a/b", false},
		{"q?en", "qwen", true}, {"q?en", "q/en", false}, {"", "", true}, {"", "a", false},
	} {
		if got := glob(c.glob).matches(c.model); got != c.want {
			t.Errorf("%q matches %q: %v", c.glob, c.model, got)
		}
	}
	for _, bad := range []string{"[a]", `a\*`, "a]"} {
		if glob(bad).check() == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if a, b, c := glob("qwen").weight(), glob("qwen3-*").weight(), glob("*qwen").weight(); a <= b || b <= c || c <= glob("*").weight() {
		t.Error("weights are not in order")
	}
}

// Two globs meet exactly if some word matches both. Words are short here, so all
// that could are tried.
func TestPropertyGlobsMeet(t *testing.T) {
	words := []string{""}
	for from := 0; len(words) < 1+3+9+27+81+243; {
		end := len(words)
		for ; from < end; from++ {
			for _, c := range []string{"a", "b", "/"} {
				words = append(words, words[from]+c)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringMatching(`[ab/*?]{0,2}[ab/*?]?`)
		g, h := glob(part.Draw(t, "g")), glob(part.Draw(t, "h"))
		want := false
		for _, w := range words {
			want = want || g.matches(w) && h.matches(w)
		}
		if got := g.meets(h); got != want || h.meets(g) != got {
			t.Fatalf("%q and %q meet: %v, by words %v", g, h, got, want)
		}
	})
}
