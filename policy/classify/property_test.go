package classify

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/policy"
)

// TestRandomNumbers measures how often numbers that mean nothing pass: 16 digits
// as a card, letters and digits in the form of an IBAN, nine digits in the form of
// a social security number. The design note gives the rates.
func TestRandomNumbers(t *testing.T) {
	const n = 200_000
	m := maker{rand.New(rand.NewPCG(7, 8))}
	rate := func(of string, most float64, make func() string) {
		hits := 0
		for range n {
			var r digitRun
			text := []byte(make())
			switch of {
			case "cards":
				r.read(text, 0)
				if r.card(text, -1) > 0 {
					hits++
				}
			case "IBANs":
				if iban(text, 2) > 0 {
					hits++
				}
			case "SSNs":
				r.read(text, 0)
				if r.ssn(text) > 0 {
					hits++
				}
			}
		}
		got := float64(hits) / n
		t.Logf("%.2f %% of random numbers pass as %s", 100*got, of)
		if got > most || hits == 0 {
			t.Errorf("%.4f of random numbers pass as %s, want no more than %.4f and some", got, of, most)
		}
	}
	rate("cards", 0.03, func() string { return m.from(digitChars, 16) })
	rate("IBANs", 0.011, func() string { return "DE" + m.from(digitChars, 20) })
	rate("SSNs", 0.89, func() string {
		return m.from(digitChars, 3) + "-" + m.from(digitChars, 2) + "-" + m.from(digitChars, 4)
	})
}

// TestChecksums changes one character of a number at a time: by the definition of
// its check digits none of the results is valid.
func TestChecksums(t *testing.T) {
	m := maker{rand.New(rand.NewPCG(9, 10))}
	for range 2000 {
		card := m.card()
		digits := make([]byte, len(card))
		for i := range card {
			digits[i] = card[i] - '0'
		}
		if !luhn(digits) || !issued(digits) {
			t.Fatalf("%s is no card", card)
		}
		at := m.IntN(len(digits))
		digits[at] = (digits[at] + 1 + byte(m.IntN(9))) % 10
		if luhn(digits) {
			t.Fatalf("%s with another digit at %d has the same check digit", card, at)
		}
		account := []byte(m.iban())
		if iban(account, 2) == 0 {
			t.Fatalf("%s is no IBAN", account)
		}
		at = 4 + m.IntN(len(account)-4)
		if c := account[at]; isDigit(c) {
			account[at] = '0' + (c-'0'+1+byte(m.IntN(9)))%10
		} else {
			account[at] = 'A' + (c-'A'+1+byte(m.IntN(25)))%26
		}
		if mod97(account) {
			t.Fatalf("%s with another character at %d has the same check digits", account, at)
		}
	}
}

// TestIssuers checks that the ranges are in order and apart, as a search through
// them relies on, and that each accepts its ends.
func TestIssuers(t *testing.T) {
	for i, is := range issuers {
		if i > 0 && is.from <= issuers[i-1].to || is.from > is.to || is.minLen > is.maxLen {
			t.Errorf("the range from %d is out of order", is.from)
		}
		for _, prefix := range []int{is.from, is.to} {
			digits := make([]byte, 16)
			for k, c := range fmt.Sprint(prefix) {
				digits[k] = byte(c - '0')
			}
			if want := is.minLen <= 16 && 16 <= is.maxLen; issued(digits) != want {
				t.Errorf("a number of 16 digits with the prefix %d is issued: %v, want %v", prefix, !want, want)
			}
		}
	}
}

// numbersText draws a text with numbers of all kinds.
func numbersText(rt *rapid.T) string {
	seed := rapid.Uint64().Draw(rt, "seed")
	m := maker{rand.New(rand.NewPCG(seed, seed))}
	var b strings.Builder
	for range rapid.IntRange(1, 4).Draw(rt, "numbers") {
		b.WriteString(rapid.SampledFrom([]string{"", "a ", "pay, ", "\n", "é "}).Draw(rt, "before"))
		kind := rapid.SampledFrom([]string{"card", "card-odd", "card-wrong", "iban", "iban-wrong", "ssn", "phone", "int16", "float", "date", "uuid"}).Draw(rt, "kind")
		b.WriteString(m.value(kind))
		b.WriteString(rapid.SampledFrom([]string{" ", ", ", "\n", ". "}).Draw(rt, "after"))
	}
	return b.String()
}

// TestSplitInvariance cuts a text into parts at any places: no card, account or
// social security number is lost, wherever the cut is.
func TestSplitInvariance(t *testing.T) {
	c := mustNew(t, each())
	rapid.Check(t, func(rt *rapid.T) {
		text := numbersText(rt)
		whole := scanText(c, text).Findings
		runes := []rune(text)
		cuts := rapid.SliceOfN(rapid.IntRange(0, len(runes)), 0, 5).Draw(rt, "cuts")
		parts := split(runes, cuts)
		cut := scanBody(c, partsBody(parts)).Findings
		for _, d := range []string{PaymentCard, IBAN, USSSN} {
			if cut[d] < whole[d] {
				rt.Fatalf("%s: %d in %q, %d in %q", d, whole[d], text, cut[d], parts)
			}
		}
	})
}

// TestEverySplit cuts texts in which other digits are near a number into three parts, at
// every two places.
func TestEverySplit(t *testing.T) {
	c := mustNew(t, each())
	for _, text := range []string{
		"0d247c56666 5018 2529 7753 4896 ", "id 16666 5018252977534896.",
		"5018 2529 7753 4896 5018 2529 7753 4896,", "6666/5018 2529 7753 4896 ", "666 5018-2529-7753-4896\n",
		"12345 GB82 WEST 1234 5698 7654 32 ", "16666 536-22-8726 ", "1 536-22-8726 9",
	} {
		runes := []rune(text)
		whole := scanText(c, text).Findings
		if len(whole) == 0 {
			t.Errorf("nothing is found in %q", text)
		}
		for i := range runes {
			for j := i; j <= len(runes); j++ {
				parts := split(runes, []int{i, j})
				cut := scanBody(c, partsBody(parts)).Findings
				for _, d := range []string{PaymentCard, IBAN, USSSN} {
					if cut[d] < whole[d] {
						t.Errorf("%s: %d in %q, %d in %q", d, whole[d], text, cut[d], parts)
					}
				}
			}
		}
	}
}

// partsBody is a request whose content has these parts.
func partsBody(parts []string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, `,{"type":"text","text":%s}`, quote(p))
	}
	return `{"messages":[{"role":"user","content":[` + b.String()[1:] + `]}]}`
}

func split(text []rune, cuts []int) (parts []string) {
	at := make([]bool, len(text)+1)
	for _, c := range cuts {
		at[c] = true
	}
	part := ""
	for i, r := range text {
		if at[i] {
			parts = append(parts, part)
			part = ""
		}
		part += string(r)
	}
	return append(parts, part)
}

// TestPlaceInvariance puts a text behind others of any length, so that it lies
// across the ends of chunks, and in any place of a body: what is found is the same.
func TestPlaceInvariance(t *testing.T) {
	c := mustNew(t, each())
	rapid.Check(t, func(rt *rapid.T) {
		text := numbersText(rt)
		want := scanText(c, text).Findings
		pad := strings.Repeat("word ", chunk/5) + strings.Repeat(".", rapid.IntRange(0, 80).Draw(rt, "pad")) + "\n"
		for name, body := range map[string]string{
			"across chunks": message(pad[len(text)/2:] + text),
			"escaped":       `{"prompt":"` + escapeAll(text) + `"}`,
			"nested":        message(`{"a":` + quote(text) + `}`),
			"a key":         `{` + quote(text+"~") + `:1}`,
		} {
			got := scanBody(c, body).Findings
			if name == "nested" {
				// As it stands such a text has other ends of words.
				for d, n := range want {
					got[d] = min(got[d], n)
				}
				maps.DeleteFunc(got, func(d string, _ int64) bool { return want[d] == 0 })
			}
			if !maps.Equal(got, want) {
				rt.Fatalf("%s: %v, want %v of %q", name, got, want, text)
			}
		}
	})
}

// escapeAll writes every character as an escape of JSON.
func escapeAll(text string) string {
	var b strings.Builder
	for _, r := range text {
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	return b.String()
}

// TestDisguises writes a card number with characters that can't be seen, in other
// digits, and with other spaces and dashes.
func TestDisguises(t *testing.T) {
	c := mustNew(t, each())
	const card = "4111-1111-1111-1111"
	digits := func(zero rune) string {
		return strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' {
				return zero + r - '0'
			}
			return r
		}, card)
	}
	for name, text := range map[string]string{
		"full width": digits('０'), "Arabic": digits('٠'), "Persian": digits('۰'), "Devanagari": digits('०'), "Bengali": digits('০'), "Thai": digits('๐'),
		"mathematical": digits('𝟎'), "circled": strings.NewReplacer("4", "④", "1", "①").Replace(card),
		"soft hyphens": strings.ReplaceAll(card, "1", "1\u00ad"), "zero-width spaces": strings.ReplaceAll(card, "1", "\u200b1"), "joiners": strings.ReplaceAll(card, "1", "1\u200d\u2060"),
		"marks of direction": "\u202d" + strings.ReplaceAll(card, "1", "\u200e1") + "\u202c", "byte order marks": strings.ReplaceAll(card, "1", "\ufeff1"),
		"variation selectors": strings.ReplaceAll(card, "1", "1\ufe0f"), "tags": strings.ReplaceAll(card, "1", "1\U000e0031"),
		"Hangul fillers": strings.ReplaceAll(card, "1", "1\u3164"), "half-width fillers": strings.ReplaceAll(card, "1", "\uffa01"), "NUL": strings.ReplaceAll(card, "1", "1\x00"),
		"DEL": strings.ReplaceAll(card, "1", "1\x7f"), "backspace": strings.ReplaceAll(card, "1", "1\b"), "next line": strings.ReplaceAll(card, "1", "1\u0085"),
		"accents": strings.ReplaceAll(card, "1", "1\u0301"), "two accents": strings.ReplaceAll(card, "1", "1\u0301\u0323"), "accents on full width": strings.ReplaceAll(digits('０'), "１", "１\u0301"),
		"keycaps": strings.ReplaceAll(card, "1", "1\ufe0f\u20e3"), "objects": strings.ReplaceAll(card, "1", "\ufffc1"), "Braille spaces": strings.ReplaceAll(card, "-", "\u2800"),
		"no-break spaces": strings.ReplaceAll(card, "-", "\u00a0"), "thin spaces": strings.ReplaceAll(card, "-", "\u2009"), "ideographic spaces": strings.ReplaceAll(card, "-", "\u3000"),
		"en dashes": strings.ReplaceAll(card, "-", "–"), "minus signs": strings.ReplaceAll(card, "-", "−"), "no-break hyphens": strings.ReplaceAll(card, "-", "\u2011"),
	} {
		if got := scanText(c, "x "+text+" y").Findings[PaymentCard]; got != 1 {
			t.Errorf("%s: %q has %d cards, want 1", name, text, got)
		}
	}
}

// TestConcurrentScans scans different bodies at once: no scan sees another's text
// or counts.
func TestConcurrentScans(t *testing.T) {
	cfg := each()
	cfg.Custom = []Custom{{Name: "d", Label: "d", Patterns: []string{`EMP-\d+`}, Keywords: []string{"falcon"}}}
	c := mustNew(t, cfg)
	bodies := []string{
		message("a@example.com"), message("4111 1111 1111 1111"), message(strings.Repeat("Falcon é ", 1000)), message("EMP-1 EMP-2"), `{"prompt":[1,2]}`, `x`,
		message(`{"a":"219-09-9999"}`), message(strings.Repeat("x", 1<<20+1)),
	}
	want := make([]policy.Content, len(bodies))
	for i, b := range bodies {
		want[i] = scanBody(c, b)
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 40 {
				k := (i*7 + worker) % len(bodies)
				if got := c.Scan(context.Background(), &Request{Body: []byte(bodies[k])}); fmt.Sprint(got) != fmt.Sprint(want[k]) {
					t.Errorf("body %d gives %v, want %v", k, got, want[k])
				}
			}
		})
	}
	wg.Wait()
}
