package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Outcome is what became of a request. Times run from when it was due, not
// from when it was sent, so a generator that falls behind cannot hide waiting.
type Outcome struct {
	At    time.Duration // when it was due, from the start of the run
	Lag   time.Duration // how late it was sent
	First time.Duration // to the first token; for a request without one, to its end
	Total time.Duration
	// Err is set if the answer did not come whole. A request cut by the end of
	// the run has waited at least for First.
	Err error
	Got bool // a first token came
	// Status is that of the answer, 0 without one; RetryAfter is what a refusal asked
	// for, 0 if it asked for nothing.
	Status     int
	RetryAfter time.Duration
}

// Sender sends requests over kept connections.
type Sender struct {
	client *http.Client
	url    string
}

// NewSender makes one for a server's base URL. The caller closes it.
func NewSender(url string) *Sender {
	return &Sender{url: url, client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 4096, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
	}}}
}

// Close closes the connections that nothing uses.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

var (
	dataPrefix = []byte("data: ")
	contentKey = []byte(`"content":`)
	roleKey    = []byte(`"role":"assistant"`)
	errorKey   = []byte(`{"error":`)
	doneLine   = []byte("[DONE]")
)

// Send sends one streamed chat request, which was due at the given time, and
// reads its stream to the end. key, an API key, may be empty.
func (s *Sender) Send(ctx context.Context, body []byte, key string, at time.Duration, due time.Time) (o Outcome) {
	o = Outcome{At: at, Lag: time.Since(due)}
	defer func() {
		o.Total = time.Since(due)
		if !o.Got {
			o.First = o.Total
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		o.Err = err
		return o
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		o.Err = err
		return o
	}
	defer resp.Body.Close()
	o.Status = resp.StatusCode
	if resp.StatusCode != http.StatusOK {
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			o.RetryAfter = time.Duration(seconds) * time.Second
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		o.Err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
		return o
	}
	o.Err = o.read(resp.Body, due)
	return o
}

// read follows a stream. The first token is the first event with content that
// is not the one that only opens the answer.
func (o *Outcome) read(body io.Reader, due time.Time) error {
	lines := bufio.NewReaderSize(body, 4096)
	for done := false; ; {
		line, err := lines.ReadSlice('\n')
		data, ok := bytes.CutPrefix(line, dataPrefix)
		switch {
		case errors.Is(err, io.EOF) && done:
			return nil
		case errors.Is(err, io.EOF):
			return errors.New("the stream ended without [DONE]")
		case err != nil:
			return err
		case !ok:
		case bytes.HasPrefix(data, doneLine):
			done = true
		case bytes.HasPrefix(data, errorKey):
			return fmt.Errorf("the stream ended with an error: %s", bytes.TrimSpace(data))
		case !o.Got && bytes.Contains(data, contentKey) && !bytes.Contains(data, roleKey):
			o.Got, o.First = true, time.Since(due)
		}
	}
}
