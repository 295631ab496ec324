package classify

import (
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// TestPlainRunes holds the fast path against package norm: a plain rune is in
// NFKC, is a boundary before which nothing composes, and isn't changed otherwise.
func TestPlainRunes(t *testing.T) {
	n := 0
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if !plain(r) {
			continue
		}
		n++
		text := string(r)
		p := norm.NFKC.PropertiesString(text)
		if !norm.NFKC.IsNormalString(text) || !p.BoundaryBefore() || p.CCC() != 0 {
			t.Errorf("%U is not in NFKC beside every other", r)
		}
		if r >= utf8.RuneSelf && plainLength([]byte(text)) != len(text) {
			t.Errorf("%U is plain, but not found to be", r)
		}
		if got := visible(r); got != r {
			t.Errorf("%U is plain, but maps to %U", r, got)
		}
	}
	if n < 39_000 {
		t.Errorf("%d runes are plain", n)
	}
}

// TestPlainLength compares the fast decoder with package utf8 on all beginnings of
// three bytes.
func TestPlainLength(t *testing.T) {
	for lead := 0x80; lead < 256; lead++ {
		for second := range 256 {
			for _, third := range []byte{0, 0x7f, 0x80, 0x8f, 0x90, 0xa0, 0xbf, 0xc0, 0xff} {
				text := []byte{byte(lead), byte(second), third}
				r, n := utf8.DecodeRune(text)
				want := 0
				if n > 1 && plain(r) {
					want = n
				}
				for cut := 1; cut <= 3; cut++ {
					if got := plainLength(text[:cut]); got != want && (cut == 3 || got > cut) {
						t.Fatalf("% x has a plain rune of %d bytes, want %d", text[:cut], got, want)
					}
				}
			}
		}
	}
}

// never lets a folder go on.
func never(int) bool { return false }

// TestFold compares the folder with NFKC of the text's visible runes, one by one.
func TestFold(t *testing.T) {
	some := rapid.SampledFrom([]rune{'a', '1', 'e', '\u0301', 'é', '１', 'ﬁ', 'ｶ', 'ﾞ', '가', '\u1100', '\u1161', '\u11a8', 'か', '\u3099', '漢', '\u200b', '\u00ad', '\u00a0', '…', '٣', 'क', '\u093c', '\ufeff', '😀', '𝟙', '\u0345', '\u034f', '\u3164', '\uffa0', '\u0085', '\u20e3'})
	rapid.Check(t, func(rt *rapid.T) {
		runes := rapid.SliceOfN(rapid.OneOf(some, rapid.Rune()), 0, 12).Draw(rt, "text")
		var f folder
		var seen []byte
		for _, r := range runes {
			to := r
			if r >= utf8.RuneSelf {
				to = visible(r)
			}
			if combines(r) && len(seen) > 0 && isDigit(seen[len(seen)-1]) {
				to = -1
			}
			if to >= 0 { // the ellipsis is left to NFKC here
				seen = utf8.AppendRune(seen, to)
			}
		}
		want := norm.NFKC.String(string(seen))
		if got := string(f.text([]byte(string(runes)), never)); got != want {
			rt.Fatalf("%q gives %q, want %q", string(runes), got, want)
		}
	})
}

// TestInvalidUTF8 checks that bytes that are no text don't hide what is.
func TestInvalidUTF8(t *testing.T) {
	c := mustNew(t, each())
	for _, body := range []string{"{\"prompt\":\"\xffa@example.com\"}", "{\"prompt\":\"\xe2\x80 4111111111111111\"}"} {
		if got := scanBody(c, body); len(got.Findings) != 1 {
			t.Errorf("%q has %v", body, got.Findings)
		}
	}
}
