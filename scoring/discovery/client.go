package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	// maxSmallBody bounds every body but that of /metrics.
	maxSmallBody = 1 << 20
	// maxMetricsBody bounds /metrics, which takes about 60 KiB for one engine.
	maxMetricsBody = 16 << 20
)

// client makes the calls to one worker.
type client struct {
	base    string
	key     string
	http    http.Client
	timeout time.Duration
}

func newClient(base, key string, rt http.RoundTripper, timeout time.Duration) *client {
	if rt == nil {
		// Not the default transport: a worker is reached directly, never by a
		// proxy from the environment, and its connections go with it.
		rt = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: timeout}).DialContext,
			MaxIdleConnsPerHost: 2,
			IdleConnTimeout:     30 * time.Second,
			TLSHandshakeTimeout: timeout,
		}
	}
	c := &client{base: base, key: key, timeout: timeout}
	c.http.Transport = rt
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

func (c *client) close() { c.http.CloseIdleConnections() }

// statusError is an answer other than 200.
type statusError struct {
	path   string
	status int
}

func (e *statusError) Error() string { return fmt.Sprintf("%s answers %d", e.path, e.status) }

// transportError is a call that brought no whole answer.
type transportError struct{ err error }

func (e *transportError) Error() string { return e.err.Error() }
func (e *transportError) Unwrap() error { return e.err }

func isTransport(err error) bool {
	_, ok := errors.AsType[*transportError](err)
	return ok
}

// get returns the body of a 200. Any other status is a *statusError, and a body
// over limit is an error.
func (c *client) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &transportError{c.explain(path, err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, &transportError{c.explain(path, err)}
	case resp.StatusCode != http.StatusOK:
		return nil, &statusError{path, resp.StatusCode}
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%s answers more than %d bytes", path, limit)
	}
	return body, nil
}

// explain shortens an error of net/http, which repeats method and URL.
func (c *client) explain(path string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s did not answer within %v", path, c.timeout)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return fmt.Errorf("cannot call %s: %w", path, err)
}
