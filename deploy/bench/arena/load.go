package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// outcome is what became of a request. Times run from when it was due, not
// from when it was sent, so a generator that falls behind cannot hide waiting.
type outcome struct {
	at    time.Duration // when it was due
	lag   time.Duration // how late it was sent
	first time.Duration // to the first token; for a request without one, to its end
	total time.Duration
	// err is set if the answer did not come whole. A request cut by the end of
	// the run has waited at least for first.
	err error
	got bool // a first token came
}

// sender sends requests over kept connections.
type sender struct {
	client *http.Client
	url    string
	key    string // API key, may be empty
}

func newSender(url, key string) *sender {
	return &sender{
		url: url, key: key,
		client: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 4096, IdleConnTimeout: 4 * time.Second, DisableCompression: true,
		}},
	}
}

func (s *sender) close() { s.client.CloseIdleConnections() }

var (
	dataPrefix = []byte("data: ")
	contentKey = []byte(`"content":`)
	roleKey    = []byte(`"role":"assistant"`)
	doneLine   = []byte("[DONE]")
)

// send sends one request that is due now and reads its stream to the end.
func (s *sender) send(ctx context.Context, r *request, due time.Time) (o outcome) {
	o = outcome{at: r.at, lag: time.Since(due)}
	defer func() {
		o.total = time.Since(due)
		if !o.got {
			o.first = o.total
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/chat/completions", bytes.NewReader(r.body))
	if err != nil {
		o.err = err
		return o
	}
	req.Header.Set("Content-Type", "application/json")
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		o.err = err
		return o
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		o.err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
		return o
	}
	o.err = o.read(resp.Body, due)
	return o
}

// read follows a stream. The first token is the first event with content that
// is not the one that only opens the answer.
func (o *outcome) read(body io.Reader, due time.Time) error {
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
		case !o.got && bytes.Contains(data, contentKey) && !bytes.Contains(data, roleKey):
			o.got, o.first = true, time.Since(due)
		}
	}
}

// drainTime is how long the last requests of a run may take.
const drainTime = 30 * time.Second

// openLoop sends requests when they are due, whatever became of those before,
// and returns all outcomes in order. at is called once at the given time.
func openLoop(ctx context.Context, s *sender, requests []request, at time.Duration, call func()) []outcome {
	if len(requests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requests[len(requests)-1].at+drainTime)
	defer cancel()
	outcomes := make([]outcome, len(requests))
	start := time.Now()
	mark := time.AfterFunc(at, call)
	defer mark.Stop()
	var wg sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range requests {
		due := start.Add(requests[i].at)
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		wg.Go(func() { outcomes[i] = s.send(ctx, &requests[i], due) })
	}
	wg.Wait()
	return outcomes
}

// closedLoop keeps each sender busy with streams of its own requests, in
// order, from the beginning again when they are used up, for warm and then
// measured time. It returns finished requests a second of the measured time.
func closedLoop(ctx context.Context, senders []*sender, shares [][]request, streams int, warm, measured time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, warm+measured)
	defer cancel()
	start := time.Now()
	var mu sync.Mutex
	finished := 0
	var failed error
	var wg sync.WaitGroup
	for i, s := range senders {
		next := 0
		for range streams {
			wg.Go(func() {
				for ctx.Err() == nil {
					mu.Lock()
					r := &shares[i][next%len(shares[i])]
					next++
					mu.Unlock()
					o := s.send(ctx, r, time.Now())
					mu.Lock()
					switch since := time.Since(start); {
					case ctx.Err() != nil:
					case o.err != nil && failed == nil:
						failed = o.err
						cancel()
					case since > warm:
						finished++
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return float64(finished) / measured.Seconds(), failed
}
