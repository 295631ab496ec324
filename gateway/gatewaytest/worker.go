package gatewaytest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait of this package: what takes longer never comes.
const patience = time.Minute

// Behaviour answers one request, or fails to. When it returns, the connection
// stays open for the next request if the answer was complete, and is closed
// otherwise.
type Behaviour func(x *Exchange)

// Seen is a request as a worker received it. It does not change once the worker
// hands it out.
type Seen struct {
	Method, Target, Host string
	Header               http.Header
	Body                 []byte
	// Conn numbers the connection the request came on, from 1.
	Conn int
	// Left is closed when the client's side of the connection ended before the
	// answer was complete.
	Left <-chan struct{}
	// Done is closed when the behaviour has returned.
	Done <-chan struct{}
}

// Worker is a fake worker on a listener of its own. It is safe for concurrent
// use, and closes itself when the test ends.
type Worker struct {
	listener net.Listener
	arrivals chan *Seen
	closing  chan struct{}
	once     sync.Once
	running  sync.WaitGroup

	mu     sync.Mutex // mu protects the fields below
	script []Behaviour
	fixed  map[string]Behaviour
	seen   []*Seen
	conns  map[net.Conn]struct{}
	opened int
	closed bool
}

// NewWorker starts a worker that plays script: one behaviour for each request,
// the last for all that follow. A worker without a script answers 200 and {}.
func NewWorker(t testing.TB, script ...Behaviour) *Worker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("cannot listen for a fake worker: %v", err)
	}
	w := &Worker{
		listener: listener,
		arrivals: make(chan *Seen, 4096),
		closing:  make(chan struct{}),
		fixed:    map[string]Behaviour{},
		conns:    map[net.Conn]struct{}{},
	}
	w.Script(script...)
	w.running.Go(w.accept)
	t.Cleanup(w.Close)
	return w
}

// Addr is the worker's host and port.
func (w *Worker) Addr() string { return w.listener.Addr().String() }

// URL is the worker's base URL, without a slash at its end.
func (w *Worker) URL() string { return "http://" + w.Addr() }

// Script replaces what is left of the script.
func (w *Worker) Script(script ...Behaviour) {
	if len(script) == 0 {
		script = []Behaviour{JSON(http.StatusOK, "{}")}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.script = append([]Behaviour(nil), script...)
}

// Handle gives one path a behaviour of its own. Its requests neither take from
// the script nor show up in Next and Seen; it serves health checks and scrapes.
func (w *Worker) Handle(path string, b Behaviour) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fixed[path] = b
}

// Next waits for the next request and fails the test if none comes. It must be
// called from the test's own goroutine.
func (w *Worker) Next(t testing.TB) *Seen {
	t.Helper()
	select {
	case seen := <-w.arrivals:
		return seen
	case <-time.After(patience):
		t.Fatalf("no request reached the worker within %v", patience)
		return nil
	}
}

// Seen returns all requests so far.
func (w *Worker) Seen() []*Seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*Seen(nil), w.seen...)
}

// Connections is the number of connections accepted so far.
func (w *Worker) Connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}

// DropAll resets all connections, as a worker that dies does, but goes on
// listening.
func (w *Worker) DropAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.conns {
		reset(conn)
	}
}

// Close stops listening, closes all connections and waits for the behaviours to
// return. A second call does nothing.
func (w *Worker) Close() {
	w.once.Do(func() {
		close(w.closing)
		w.listener.Close()
		w.mu.Lock()
		w.closed = true
		for conn := range w.conns {
			conn.Close()
		}
		w.mu.Unlock()
	})
	w.running.Wait()
}

func (w *Worker) accept() {
	for {
		conn, err := w.listener.Accept()
		if err != nil {
			return
		}
		number, ok := w.register(conn)
		if !ok {
			conn.Close()
			return
		}
		w.running.Go(func() {
			defer w.forget(conn)
			w.serve(conn, number)
		})
	}
}

func (w *Worker) register(conn net.Conn) (number int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, false
	}
	w.conns[conn] = struct{}{}
	w.opened++
	return w.opened, true
}

func (w *Worker) forget(conn net.Conn) {
	conn.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, conn)
}

// serve reads the requests of one connection. While a behaviour answers, it
// waits for the client's next byte, so that a client that leaves is noticed at
// once.
func (w *Worker) serve(conn net.Conn, number int) {
	in := bufio.NewReaderSize(conn, 64<<10)
	for {
		x, err := readExchange(in, conn, number)
		if err != nil {
			return
		}
		x.closing = w.closing
		behaviour := w.next(x.Seen)
		finished := make(chan struct{})
		w.running.Go(func() {
			defer close(finished)
			behaviour(x)
			x.finish()
		})
		_, err = in.Peek(1)
		if err != nil {
			x.gone(!errors.Is(err, net.ErrClosed))
			<-finished
			return
		}
		<-finished
		if !x.complete() {
			return
		}
	}
}

func readExchange(in *bufio.Reader, conn net.Conn, number int) (*Exchange, error) {
	req, err := http.ReadRequest(in)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	return newExchange(conn, &Seen{
		Method: req.Method, Target: req.RequestURI, Host: req.Host,
		Header: req.Header, Body: body, Conn: number,
	}), nil
}

// next records a request and picks its behaviour.
func (w *Worker) next(seen *Seen) Behaviour {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b, ok := w.fixed[seen.Target]; ok {
		return b
	}
	w.seen = append(w.seen, seen)
	select {
	case w.arrivals <- seen:
	default: // Nobody asks for arrivals; they stay in seen.
	}
	b := w.script[0]
	if len(w.script) > 1 {
		w.script = w.script[1:]
	}
	return b
}

// errGone is why an exchange writes nothing more once its connection has ended.
var errGone = errors.New("the connection has ended")
