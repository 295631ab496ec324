package classify

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestHostileText feeds the detectors half a mebibyte of what is dearest to them:
// the time for a byte stays bounded, whatever the text. The bound is wide, as it
// guards against work that grows with the square of the text, which would take
// thousands of times longer.
func TestHostileText(t *testing.T) {
	const size = 1 << 19 / raceFactor
	cfg := each()
	cfg.MaxBytes = 4 << 20
	c := mustNew(t, cfg)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for name, unit := range map[string]string{
		"digits":             "4",
		"single digits":      "4 ",
		"groups of four":     "4111 ",
		"separators":         "1 - ",
		"soft breaks":        "1\x1f",
		"only soft breaks":   "1" + strings.Repeat("\x1f", 200),
		"ids":                "4111111111,",
		"nearly a card":      "4111 1111 1111 1112 ",
		"IBANs":              "GB82 WEST 1234 5698 7654 33 ",
		"letters and digits": "GB8",
		"at signs":           "@",
		"addresses":          "a@b.",
		"long local parts":   strings.Repeat("a", 64) + "@",
		"dashes":             "-",
		"rules":              "---- ",
		"armour":             "-----BEGIN PRIVATE KEY-----",
		"PuTTY":              "PuTTY-User-Key-File-",
		"PuTTY parts":        "PuTTY-User-Key-File-Private-Lines:",
		"prefixes":           "sk-",
		"prefixes of all":    "ghp_xoxb-AKIAIzaSG.",
		"AWS names":          "secret_access_key=",
		"words":              "phone 1234567 ",
		"quotes":             `"`,
		"backslashes":        `\`,
		"brackets":           "[",
		"JSON":               `{"a":[1,"b"],`,
		"not UTF-8":          "\xff",
		"combining marks":    "e\u0301\u0323",
		"expansions":         "\ufdfa",
		"zero-width":         "\u200b",
	} {
		body := []byte(message(strings.Repeat(unit, size/len(unit))))
		best := time.Hour
		for range 2 {
			start := cpuTime(t)
			c.Scan(context.Background(), &Request{Body: body})
			best = min(best, cpuTime(t)-start)
		}
		if best == 0 {
			best = time.Millisecond // less than the system's clock ticks
		}
		t.Logf("%-18s %5.0f MB/s", name, float64(size)/1e6/best.Seconds())
		if best > time.Second {
			t.Errorf("%s: %v of CPU time for %d bytes", name, best, size)
		}
	}
}
