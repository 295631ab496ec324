package simworker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Fault is what goes wrong on purpose. The zero value is a healthy worker; all
// parts that are set hold at once. Every value has a meaning, so there is no
// invalid Fault.
type Fault struct {
	// Stall stops the scheduler for this long from the moment it is set;
	// negative means until the next SetFault. HTTP stays up, clients that
	// leave are still noticed.
	Stall time.Duration
	// SlowFactor multiplies the time of every step; 0 and below mean 1.
	SlowFactor float64

	// The rest hits requests on the generating routes only, each of the next
	// Requests ones; 0 and below mean all until the next SetFault.
	Requests int
	// Status answers with this status and an engine-shaped error body; 0 means
	// no such answer.
	Status int
	// HangHeaders accepts the request and sends nothing, until the client
	// leaves or the fault is replaced; then the request is served.
	HangHeaders bool
	// FirstByteDelay waits before the first event of a stream, whose headers go
	// out before it, or before the headers of an answer that is no stream.
	FirstByteDelay time.Duration
	// DropAfterEvents closes the connection of a stream without an end after
	// this many of its events; a negative value closes it after the headers. An
	// answer that is no stream is cut in the middle of its body, or, with a
	// negative value, after its headers. 0 means no drop.
	DropAfterEvents int
	// MalformedEvent cuts the JSON of a stream's second event in half.
	MalformedEvent bool
	// NoDone ends a stream cleanly but without its "data: [DONE]".
	NoDone bool
}

// faults hands the fault in force to requests.
type faults struct {
	mu       sync.Mutex // protects what follows
	now      Fault
	left     int           // requests still to hit; negative for all
	replaced chan struct{} // closed when the fault is replaced
	closed   chan struct{} // closed with the worker
}

func newFaults() *faults {
	return &faults{replaced: make(chan struct{}), closed: make(chan struct{})}
}

func (f *faults) set(v Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, f.left = v, v.Requests
	if v.Requests <= 0 {
		f.left = -1
	}
	close(f.replaced)
	f.replaced = make(chan struct{})
}

// take returns the fault for one request, and what is closed when it is
// replaced.
func (f *faults) take() (Fault, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return Fault{}, f.replaced
	}
	if f.left > 0 {
		f.left--
	}
	return f.now, f.replaced
}

// hang waits until the fault is replaced. It returns the context's error if
// the client left first, errEngineDead if the worker closed.
func (f *faults) hang(ctx context.Context, replaced <-chan struct{}) error {
	select {
	case <-replaced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-f.closed:
		return errEngineDead
	}
}

// wait waits for d, with the errors of hang.
func (f *faults) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-f.closed:
		return errEngineDead
	}
}

// faultError is the body of an answer with a fault's status.
func faultError(status int) *apiError {
	kind := strings.ReplaceAll(http.StatusText(status), " ", "") + "Error"
	if status == http.StatusInternalServerError {
		kind = "InternalServerError"
	}
	return &apiError{Status: status, Kind: kind, Message: "simulated fault: " + strings.ToLower(http.StatusText(status))}
}

// faultBody is a Fault as POST /sim/fault takes it. Durations are written as
// "250ms"; a stall may be "forever".
type faultBody struct {
	Stall           string  `json:"stall"`
	SlowFactor      float64 `json:"slow_factor"`
	Requests        int     `json:"requests"`
	Status          int     `json:"status"`
	HangHeaders     bool    `json:"hang_headers"`
	FirstByteDelay  string  `json:"first_byte_delay"`
	DropAfterEvents int     `json:"drop_after_events"`
	MalformedEvent  bool    `json:"malformed_event"`
	NoDone          bool    `json:"no_done"`
}

// parseFault reads a Fault strictly: an unknown member is an error.
func parseFault(body []byte) (Fault, error) {
	var b faultBody
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b); err != nil {
		return Fault{}, fmt.Errorf("cannot read the fault: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Fault{}, errors.New("cannot read the fault: one JSON object is expected and more follows")
	}
	f := Fault{
		SlowFactor: b.SlowFactor, Requests: b.Requests, Status: b.Status, HangHeaders: b.HangHeaders,
		DropAfterEvents: b.DropAfterEvents, MalformedEvent: b.MalformedEvent, NoDone: b.NoDone,
	}
	if b.Status != 0 && (b.Status < 200 || b.Status > 599) {
		return Fault{}, fmt.Errorf("status is %d; it must be between 200 and 599, or 0 for none", b.Status)
	}
	var err error
	if b.Stall == "forever" {
		f.Stall = -1
	} else if f.Stall, err = parseWait("stall", b.Stall); err != nil {
		return Fault{}, err
	}
	f.FirstByteDelay, err = parseWait("first_byte_delay", b.FirstByteDelay)
	return f, err
}

func parseWait(name, s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf(`%s is %q; write a duration such as "250ms" or "2s"`, name, s)
	}
	return d, nil
}
