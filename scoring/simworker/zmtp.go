package simworker

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// socket is the binding end of a ZMQ pattern: a listener and one zmq4
// connection for each peer. zmq4's own PUB socket leaves a goroutine behind
// when closed, shakes hands inside its accept loop and has one queue for all
// subscribers; here each peer has its own queue, and everything ends when the
// socket does.
type socket struct {
	ln   net.Listener
	kind zmq4.SocketType
	hwm  int // messages that may wait for one peer; 0 for no limit
	log  *slog.Logger
	// received is called with each message of a peer, from that peer's own
	// goroutine.
	received func(*peer, zmq4.Msg)

	wg sync.WaitGroup

	mu     sync.Mutex // protects peers and closed
	peers  map[*peer]struct{}
	closed bool
}

// peer is one connection.
type peer struct {
	conn *bufferedConn
	zmq  *zmq4.Conn
	hwm  int

	mu     sync.Mutex // protects what follows
	topics map[string]int
	queue  []zmq4.Msg
	gone   bool
	more   chan struct{} // capacity 1
}

// handshakeTime bounds a peer's greeting.
const handshakeTime = 10 * time.Second

func listen(addr string, kind zmq4.SocketType, hwm int, log *slog.Logger, received func(*peer, zmq4.Msg)) (*socket, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &socket{ln: ln, kind: kind, hwm: hwm, log: log, received: received, peers: make(map[*peer]struct{})}, nil
}

// run accepts peers until the listener is closed, then waits for all of them.
func (s *socket) run() {
	defer s.wg.Wait()
	for {
		conn, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.serve(conn) })
	}
}

// serve shakes hands with a peer and reads what it sends until it leaves.
func (s *socket) serve(conn net.Conn) {
	p := &peer{
		conn: &bufferedConn{Conn: conn}, hwm: s.hwm,
		topics: make(map[string]int), more: make(chan struct{}, 1),
	}
	if !s.add(p) {
		_ = conn.Close()
		return
	}
	defer s.remove(p)
	_ = conn.SetDeadline(time.Now().Add(handshakeTime))
	zc, err := zmq4.Open(p.conn, null.Security(), s.kind, nil, true, nil)
	if err != nil {
		s.log.LogAttrs(context.Background(), slog.LevelDebug, "ZMQ handshake failed", slog.Any("error", err))
		return
	}
	_ = conn.SetDeadline(time.Time{})
	p.zmq = zc
	p.conn.buffer()
	s.wg.Go(p.write)
	for {
		msg, err := zc.RecvMsg()
		if err != nil {
			return
		}
		if msg.Type == zmq4.UsrMsg {
			s.received(p, msg)
		}
	}
}

func (s *socket) add(p *peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.peers[p] = struct{}{}
	return true
}

func (s *socket) remove(p *peer) {
	s.mu.Lock()
	delete(s.peers, p)
	s.mu.Unlock()
	p.close()
}

// close ends the listener and all peers. With reset, connections end as those
// of a lost machine do.
func (s *socket) close(reset bool) {
	s.mu.Lock()
	s.closed = true
	peers := s.peers
	s.peers = make(map[*peer]struct{})
	s.mu.Unlock()
	_ = s.ln.Close()
	for p := range peers {
		if reset {
			resetOnClose(p.conn.Conn)
		}
		p.close()
	}
}

// resetOnClose makes closing conn send RST instead of FIN.
func resetOnClose(conn net.Conn) {
	if tc, ok := conn.(*net.TCPConn); ok {
		_ = tc.SetLinger(0)
	}
}

// each calls f for every peer that has shaken hands or is about to.
func (s *socket) each(f func(*peer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		f(p)
	}
}

// subscribe handles a subscriber's message: 1 or 0 and the topic.
func (p *peer) subscribe(msg zmq4.Msg) {
	if len(msg.Frames) != 1 || len(msg.Frames[0]) == 0 {
		return
	}
	topic := string(msg.Frames[0][1:])
	p.mu.Lock()
	defer p.mu.Unlock()
	switch msg.Frames[0][0] {
	case 1:
		p.topics[topic]++
	case 0:
		if p.topics[topic]--; p.topics[topic] <= 0 {
			delete(p.topics, topic)
		}
	}
}

// wants says whether a subscription of p covers topic.
func (p *peer) wants(topic string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := range p.topics {
		if strings.HasPrefix(topic, t) {
			return true
		}
	}
	return false
}

// send queues a message, or drops it if too many wait already.
func (p *peer) send(frames ...[]byte) {
	p.mu.Lock()
	if !p.gone && (p.hwm == 0 || len(p.queue) < p.hwm) {
		p.queue = append(p.queue, zmq4.NewMsgFrom(frames...))
	}
	p.mu.Unlock()
	p.wake()
}

func (p *peer) wake() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *peer) close() {
	p.mu.Lock()
	p.gone = true
	p.queue = nil
	p.mu.Unlock()
	_ = p.conn.Close()
	p.wake()
}

// write sends what is queued until the peer is gone.
func (p *peer) write() {
	for range p.more {
		for {
			p.mu.Lock()
			queue, gone := p.queue, p.gone
			p.queue = nil
			p.mu.Unlock()
			if gone {
				return
			}
			if len(queue) == 0 {
				break
			}
			for _, msg := range queue {
				if p.zmq.SendMsg(msg) != nil {
					_ = p.conn.Close()
					return
				}
			}
			if p.conn.flush() != nil {
				_ = p.conn.Close()
				return
			}
		}
	}
}

// bufferedConn gathers the small writes of a ZMQ message into one. Until
// buffer is called it writes through, as a handshake needs.
type bufferedConn struct {
	net.Conn

	mu sync.Mutex // protects w
	w  *bufio.Writer
}

func (c *bufferedConn) buffer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w = bufio.NewWriterSize(c.Conn, 32<<10)
}

// Write implements net.Conn.
func (c *bufferedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w == nil {
		return c.Conn.Write(b)
	}
	return c.w.Write(b)
}

func (c *bufferedConn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w.Flush()
}
