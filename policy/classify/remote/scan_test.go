package remote

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/policy/classify"
)

var _ classify.External = (*Detector)(nil)

// TestScanStatus: what a detector says or fails to say is what policies see.
func TestScanStatus(t *testing.T) {
	const card = `{"messages":[{"role":"user","content":"card 4111 1111 1111 1111"}]}`
	for _, c := range []struct {
		name, path, status string
		labels             map[string]int64
		detectors          []string
	}{
		{"judged", "/found", "complete", map[string]int64{"own": 1, "pci": 1}, []string{"d", "payment-card"}},
		{"nothing found", "/nothing", "complete", map[string]int64{"own": 1}, []string{"d", "payment-card"}},
		{"failed", "/failed", "unavailable", map[string]int64{"own": 1}, []string{"payment-card"}},
		{"nonsense", "/nonsense", "unavailable", map[string]int64{"own": 1}, []string{"payment-card"}},
		{"too slow", "/slow", "timeout", map[string]int64{"own": 1}, []string{"payment-card"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			release := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/found":
					_, _ = io.WriteString(w, fixture(t, "presidio.json"))
				case "/nothing":
					_, _ = io.WriteString(w, "[]")
				case "/failed":
					w.WriteHeader(http.StatusInternalServerError)
				case "/nonsense":
					_, _ = io.WriteString(w, "{}")
				case "/slow":
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}
			}))
			defer srv.Close()
			defer close(release)
			cfg := testConfig(Presidio, srv.URL+c.path)
			cfg.Labels = map[string]string{"CREDIT_CARD": "pci", "EMAIL_ADDRESS": "", "URL": ""}
			if c.status == "timeout" {
				cfg.Timeout = 20 * time.Millisecond
			}
			scanner, err := classify.New(classify.Config{
				MaxBytes: 1 << 20, Budget: time.Second,
				Builtin:  []classify.Builtin{{Detector: classify.PaymentCard, Label: "own"}},
				External: []classify.External{mustNew(t, cfg)},
			})
			if err != nil {
				t.Fatal(err)
			}
			got := scanner.Scan(t.Context(), &classify.Request{Body: []byte(card)})
			slices.Sort(got.Detectors)
			if got.ScanStatus != c.status || !maps.Equal(got.Findings, c.labels) || !slices.Equal(got.Detectors, c.detectors) {
				t.Errorf("got %+v", got)
			}
		})
	}
}
