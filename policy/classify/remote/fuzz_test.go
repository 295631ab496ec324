package remote

import (
	"math"
	"testing"
)

// FuzzAnswers: no answer makes a decoder panic, a finding has a name and a
// sound place, and an answer that judges nothing is an error.
func FuzzAnswers(f *testing.F) {
	for _, shape := range []string{Presidio, Moderation, Classify} {
		f.Add(shape, []byte(fixture(f, shape+".json")), 0.5)
	}
	f.Add(Classify, []byte(`{"data":[{"index":0,"label":null,"probs":[1]}]}`), 0.0)
	f.Add(Moderation, []byte(`{"results":[{"categories":{"a":null}}]}`), 1.0)
	f.Fuzz(func(t *testing.T, name string, body []byte, threshold float64) {
		s, ok := shapes[name]
		if !ok || math.IsNaN(threshold) {
			return
		}
		c := testConfig(name, "https://detector.example")
		c.Threshold = threshold
		var found []finding
		err := s.decode(&c, body, split("some text", 256), func(f finding) { found = append(found, f) })
		for _, f := range found {
			if f.placed && (f.name == "" || f.start < 0 || f.end < f.start) {
				t.Errorf("%+v", f)
			}
		}
		if err == nil && name == Classify && len(found) > 1 {
			t.Errorf("one text has %d classes", len(found))
		}
	})
}
