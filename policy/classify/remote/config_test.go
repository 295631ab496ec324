package remote

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name, shape string
		change      func(c *Config)
		want        string
	}{
		{"name", Presidio, func(c *Config) { c.Name = "My Detector" }, `name "My Detector" should be lower-case letters, digits and dashes, at most 63`},
		{"shape", Presidio, func(c *Config) { c.Shape = "presido" }, `shape "presido" is unknown, should be one of presidio, moderation, classify`},
		{"no url", Presidio, func(c *Config) { c.URL = "" }, `url is missing, should be the address of the detector, such as https://detector.example/analyze`},
		{"no host", Presidio, func(c *Config) { c.URL = "https:///analyze" }, `url names no host`},
		{"broken url", Presidio, func(c *Config) { c.URL = "https://u:" + secret + "@h:port/" }, `url is no URL`},
		{"credential", Presidio, func(c *Config) { c.URL = "https://user:" + secret + "@h/" }, `url holds a user name or password; use apiKey for a credential`},
		{"query", Presidio, func(c *Config) { c.URL = "https://h/?key=" + secret }, `url has a query or fragment, should end with the path`},
		{"scheme", Presidio, func(c *Config) { c.URL = "ftp://h/" }, `url has the scheme "ftp", should begin with https://, or with http:// on this machine`},
		{"in the clear", Presidio, func(c *Config) { c.URL = "http://presidio.example:3000" }, `url is http to another machine, which would show prompt text to the network; use https, or a detector on 127.0.0.1`},
		{"a name like ours", Presidio, func(c *Config) { c.URL = "http://localhost.example" }, `url is http to another machine, which would show prompt text to the network; use https, or a detector on 127.0.0.1`},
		{"labels", Presidio, func(c *Config) { c.Labels = nil }, `labels is empty, should map the detector's findings to labels, such as CREDIT_CARD: pii`},
		{"label", Presidio, func(c *Config) { c.Labels["X"] = "PII" }, `labels.X "PII" should be lower-case letters, digits and dashes, at most 63, or empty for a finding that means nothing`},
		{"finding", Presidio, func(c *Config) { c.Labels[""] = "pii" }, `labels has a finding of 0 characters, should be 1 to 128`},
		{"entity", Presidio, func(c *Config) { c.Entities = []string{"URL", "IBAN_CODE"} }, `entities[1] "IBAN_CODE" is not in labels, so that finding it would mean nothing`},
		{"entities elsewhere", Classify, func(c *Config) { c.Entities = []string{"SAFE"} }, `entities is for the shape presidio only; the shape classify has no such list`},
		{"model elsewhere", Presidio, func(c *Config) { c.Model = "m" }, `model is for the shapes moderation and classify only; the models of Presidio are its own configuration`},
		{"language", Presidio, func(c *Config) { c.Language = "" }, `language "" should be a language code such as en`},
		{"threshold", Presidio, func(c *Config) { c.Threshold = 50 }, `threshold is 50, should be a score between 0 and 1`},
		{"no number", Presidio, func(c *Config) { c.Threshold = math.NaN() }, `threshold is NaN, should be a score between 0 and 1`},
		{"timeout", Presidio, func(c *Config) { c.Timeout = time.Minute }, `timeout is 1m0s, should be between 1ms and 30s`},
		{"parallel", Presidio, func(c *Config) { c.Parallel = 0 }, `parallel is 0, should be between 1 and 1024 requests`},
		{"text", Presidio, func(c *Config) { c.MaxText = 10 }, `maxText is 10, should be between 256 and 1000000 bytes`},
		{"key", Presidio, func(c *Config) { c.APIKey = secret + "\n" }, `apiKey holds white space or a character that no header can carry`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig(c.shape, "https://detector.example")
			c.change(&cfg)
			d, err := New(cfg, nil)
			if err == nil {
				t.Fatalf("made %+v", d)
			}
			if text := err.Error(); !strings.HasSuffix(text, ": "+c.want) || !strings.HasPrefix(text, "cannot use detector ") || strings.Contains(text, "MARK") {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}

func TestURLs(t *testing.T) {
	for url, want := range map[string]string{
		"http://127.0.0.1:5002":             "http://127.0.0.1:5002/analyze",
		"http://[::1]:5002/":                "http://[::1]:5002/analyze",
		"http://localhost/custom/analyze":   "http://localhost/custom/analyze",
		"https://detector.example/analyze/": "https://detector.example/analyze/",
	} {
		if d := mustNew(t, testConfig(Presidio, url)); d.url != want {
			t.Errorf("%s becomes %s, want %s", url, d.url, want)
		}
	}
}

// TestRevision: it changes with what is asked and with what answers mean, and
// with nothing else.
func TestRevision(t *testing.T) {
	revision := func(change func(c *Config)) string {
		c := testConfig(Presidio, "https://detector.example")
		if change != nil {
			change(&c)
		}
		return mustNew(t, c).Revision()
	}
	first := revision(nil)
	if same := revision(func(c *Config) { c.Timeout, c.Parallel, c.APIKey, c.MaxText = time.Second, 2, "key", 0 }); same != first {
		t.Error("the revision follows what changes no answer")
	}
	seen := []string{first}
	for i, change := range []func(c *Config){
		func(c *Config) { c.URL += "/other" }, func(c *Config) { c.Language = "de" }, func(c *Config) { c.Entities = []string{"URL"} },
		func(c *Config) { c.Labels["X"] = "pii" }, func(c *Config) { c.Threshold = 0.6 }, func(c *Config) { c.MaxText = 1000 },
	} {
		r := revision(change)
		if slices.Contains(seen, r) {
			t.Errorf("change %d changes nothing", i)
		}
		seen = append(seen, r)
	}
}

func TestDefaultConfig(t *testing.T) {
	for shape, most := range map[string]int{Presidio: 50_000, Moderation: 30_000, Classify: 500} {
		c := DefaultConfig(shape)
		if c.Timeout != 300*time.Millisecond || c.Threshold != 0.5 || c.MaxText != most {
			t.Errorf("%s: %+v", shape, c)
		}
	}
}
