package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Detector asks one service. It is safe for concurrent use, keeps no text, and
// implements classify.External.
type Detector struct {
	cfg    Config
	shape  shape
	url    string
	client *http.Client
	slots  chan struct{} // one for each request under way
	// failing says that the last answer was an error, for the log.
	failing  atomic.Bool
	requests atomic.Uint64
}

// New checks the configuration. A nil client means one of the detector's own,
// which uses no proxy. Of a client that is given, the transport is used, with
// what it says of proxies and certificates; its redirects, cookies and time-out
// are not.
func New(cfg Config, client *http.Client) (*Detector, error) {
	if problems := cfg.Problems(); len(problems) > 0 {
		var errs []error
		for _, p := range problems {
			errs = append(errs, fmt.Errorf("%s %s", p.Field, p.Text))
		}
		return nil, fmt.Errorf("cannot use detector %q: %w", clip(cfg.Name), errors.Join(errs...))
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		panic("BUG: remote: an unchecked URL")
	}
	d := &Detector{cfg: cfg, shape: shapes[cfg.Shape], slots: make(chan struct{}, cfg.Parallel)}
	if u.Path == "" || u.Path == "/" {
		u.Path = d.shape.path
	}
	d.url = u.String()
	d.cfg.Entities = slices.Clone(cfg.Entities)
	if cfg.MaxText == 0 {
		d.cfg.MaxText = d.shape.maxText
	}
	if cfg.Log == nil {
		d.cfg.Log = slog.New(slog.DiscardHandler)
	}
	transport := http.RoundTripper(nil)
	if client != nil {
		transport = client.Transport
	} else {
		transport = ownTransport(u.Scheme, cfg.Parallel)
	}
	d.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return d, nil
}

// ownTransport uses no proxy, and without TLS it connects to this machine only,
// whatever the host's name leads to.
func ownTransport(scheme string, parallel int) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if scheme == "http" {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			if host, _, err := net.SplitHostPort(address); err != nil || !isLoopback(host) {
				return errors.New("the host leads to another machine, which http is not for")
			}
			return nil
		}
	}
	return &http.Transport{
		DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: parallel, IdleConnTimeout: 90 * time.Second, DisableCompression: true,
	}
}

// Name implements classify.External.
func (d *Detector) Name() string { return d.cfg.Name }

// Requests is how many requests were sent so far.
func (d *Detector) Requests() uint64 { return d.requests.Load() }

// Revision identifies what the detector is asked and what its findings mean. It
// does not follow changes of the service behind the URL.
func (d *Detector) Revision() string {
	c := &d.cfg
	text, err := json.Marshal([]any{c.Shape, d.url, c.Model, c.Language, c.Entities, c.Labels, c.Threshold, c.MaxText})
	if err != nil {
		panic("BUG: remote: a configuration of texts does not encode")
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Detect implements classify.External: hits by label, and those under the empty
// label for findings that have no label. It waits for all of its requests. An
// error means that some of the text was not judged; hits that were found until
// then come with it. errors.Is(err, context.DeadlineExceeded) says that the time
// was spent.
func (d *Detector) Detect(ctx context.Context, text string) (map[string]int64, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	t := &tally{labels: d.cfg.Labels}
	err := d.askAll(ctx, split(text, d.cfg.MaxText), t)
	d.note(err)
	if err != nil {
		return t.hits, fmt.Errorf("detector %s: %w", d.cfg.Name, err)
	}
	return t.hits, nil
}

// askAll sends the pieces and waits for all answers. The first error cancels
// what is still under way, since the text is not judged as a whole any more.
func (d *Detector) askAll(ctx context.Context, pieces []piece, t *tally) error {
	if len(pieces) <= d.shape.batch {
		return d.ask(ctx, pieces, t)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan []piece)
	var wg sync.WaitGroup
	for range min(d.cfg.Parallel, (len(pieces)+d.shape.batch-1)/d.shape.batch) {
		wg.Go(func() {
			for batch := range batches {
				if err := d.ask(ctx, batch, t); err != nil {
					cancel(err) // the first cause stays
				}
			}
		})
	}
	for batch := range slices.Chunk(pieces, d.shape.batch) {
		if ctx.Err() != nil {
			break
		}
		batches <- batch
	}
	close(batches)
	wg.Wait()
	return context.Cause(ctx)
}

// ask sends one request, once fewer than Parallel are under way.
func (d *Detector) ask(ctx context.Context, pieces []piece, t *tally) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case d.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("no request could be sent, as %d are under way: %w", d.cfg.Parallel, ctx.Err())
	}
	defer func() { <-d.slots }()
	body, err := d.post(ctx, pieces)
	if err != nil {
		return err
	}
	return d.shape.decode(&d.cfg, body, pieces, t.add)
}

// maxAnswer bounds an answer: a list of findings is far smaller.
const maxAnswer = 8 << 20

// post sends one request and reads its answer. Errors hold neither.
func (d *Detector) post(ctx context.Context, pieces []piece) ([]byte, error) {
	text, err := json.Marshal(d.shape.encode(&d.cfg, pieces))
	if err != nil {
		panic("BUG: remote: texts do not encode")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "sluice")
	// Not sent, but tells Go's client that it may repeat the request: one that
	// meets a kept connection in the moment in which the server closes it, too.
	req.Header["Idempotency-Key"] = []string{}
	if d.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+d.cfg.APIKey)
	}
	d.requests.Add(1)
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, reason(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 3 {
		return nil, fmt.Errorf("it answers with a redirect (%d), which is not followed", resp.StatusCode)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, reason(err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	return body, nil
}

// reason is an error of the HTTP client without what it may quote of an answer
// that is no HTTP.
func reason(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("it was not waited for: %w", context.Canceled)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("it has not answered in time: %w", context.DeadlineExceeded)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return fmt.Errorf("it can't be reached: %w", op)
	}
	if cert, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("it can't be trusted: %w", cert)
	}
	return errors.New("the connection broke, or the answer is no HTTP")
}

// note logs the first failure after a success, and the first success after a
// failure.
func (d *Detector) note(err error) {
	switch {
	case errors.Is(err, context.Canceled): // the client has left, which says nothing about the detector
	case err != nil && !d.failing.Swap(true):
		d.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn, "a detector fails", slog.String("detector", d.cfg.Name), slog.Any("err", err))
	case err == nil && d.failing.Load() && d.failing.Swap(false):
		d.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "a detector works again", slog.String("detector", d.cfg.Name))
	}
}

// tally sums findings.
type tally struct {
	labels map[string]string

	mu   sync.Mutex // protects the rest
	hits map[string]int64
	seen map[finding]bool
}

// add counts a finding under its label, or under none. One that two pieces
// share is counted once.
func (t *tally) add(f finding) {
	label, known := t.labels[f.name]
	if known && label == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.placed {
		if t.seen[f] {
			return
		}
		if t.seen == nil {
			t.seen = map[finding]bool{}
		}
		t.seen[f] = true
	}
	if t.hits == nil {
		t.hits = map[string]int64{}
	}
	t.hits[label]++
}
