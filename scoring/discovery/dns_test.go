package discovery

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// zone is a DNS server on a free port, over UDP and TCP.
type zone struct {
	addr string

	mu       sync.Mutex // protects what follows
	code     dnsmessage.RCode
	silent   bool
	truncate bool // over UDP
	records  []dnsmessage.ResourceBody
	overTCP  int
}

func (z *zone) set(f func(*zone)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	f(z)
}

func startZone(t *testing.T) *zone {
	t.Helper()
	var udp net.PacketConn
	var tcp net.Listener
	for range 20 { // the port that is free for UDP may not be for TCP
		var err error
		if udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if tcp, err = net.Listen("tcp", udp.LocalAddr().String()); err == nil {
			break
		}
		udp.Close()
	}
	if tcp == nil {
		t.Fatal("no port is free for both UDP and TCP")
	}
	z := &zone{addr: udp.LocalAddr().String()}
	var wg sync.WaitGroup
	wg.Go(func() { z.serveUDP(udp) })
	wg.Go(func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { z.serveTCP(conn) })
		}
	})
	t.Cleanup(func() {
		udp.Close()
		tcp.Close()
		wg.Wait()
	})
	return z
}

func (z *zone) serveUDP(conn net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := z.answer(buf[:n], false); answer != nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

func (z *zone) serveTCP(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		answer := z.answer(query, true)
		if answer == nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

func (z *zone) answer(query []byte, tcp bool) []byte {
	z.mu.Lock()
	defer z.mu.Unlock()
	var q dnsmessage.Message
	if err := q.Unpack(query); err != nil || len(q.Questions) != 1 || z.silent {
		return nil
	}
	if tcp {
		z.overTCP++
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, Authoritative: true, RecursionDesired: q.RecursionDesired, RecursionAvailable: true, RCode: z.code},
		Questions: q.Questions,
	}
	for _, body := range z.records {
		var typ dnsmessage.Type
		switch body.(type) {
		case *dnsmessage.AResource:
			typ = dnsmessage.TypeA
		case *dnsmessage.AAAAResource:
			typ = dnsmessage.TypeAAAA
		case *dnsmessage.SRVResource:
			typ = dnsmessage.TypeSRV
		}
		if typ == q.Questions[0].Type {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Type: typ, Class: dnsmessage.ClassINET, TTL: 5}, Body: body,
			})
		}
	}
	if z.truncate && !tcp {
		m.Truncated, m.Answers = true, nil
	}
	out, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return out
}

// hosts makes A and AAAA records of addresses.
func hosts(addrs ...string) (records []dnsmessage.ResourceBody) {
	for _, a := range addrs {
		if ip := netip.MustParseAddr(a); ip.Is4() {
			records = append(records, &dnsmessage.AResource{A: ip.As4()})
		} else {
			records = append(records, &dnsmessage.AAAAResource{AAAA: ip.As16()})
		}
	}
	return records
}

func srv(target string, port uint16) dnsmessage.ResourceBody {
	return &dnsmessage.SRVResource{Priority: 1, Weight: 2, Port: port, Target: dnsmessage.MustNewName(target)}
}

// source follows workers.test. at the zone.
func (z *zone) source(typ RecordType) *DNS {
	return &DNS{
		Name: "workers.test.", Type: typ, Port: 8000, Interval: 5 * time.Millisecond, Timeout: 20 * time.Second, RemoveAfter: 3,
		Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, z.addr)
		}},
		Template: Worker{Pool: "p", URL: "http", Models: []string{"tiny"}, Events: EventsAuto},
	}
}

// until reads answers until one is as wanted. All before it are among may.
func (f *following) until(want string, may ...string) {
	f.t.Helper()
	for {
		got := f.next()
		if got == want {
			return
		}
		if !slices.Contains(may, got) {
			f.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestDNSAddresses(t *testing.T) {
	z := startZone(t)
	z.set(func(z *zone) { z.records = hosts("10.0.0.2", "10.0.0.1", "fd00::5", "10.0.0.1") })
	run(t, z.source(RecordA)).want("10.0.0.1-8000 10.0.0.2-8000")
	run(t, z.source(RecordAAAA)).want("fd00-0000-0000-0000-0000-0000-0000-0005-8000")

	d := z.source(RecordAAAA)
	d.Template.Events, d.Template.Replay, d.Template.URL = "tcp://*:5557", "tcp://*:5558", "https"
	u := <-run(t, d).up
	if len(u.Workers) != 1 {
		t.Fatalf("got %+v", u)
	}
	w := u.Workers[0]
	if w.URL != "https://[fd00::5]:8000" || w.Events != "tcp://[fd00::5]:5557" || w.Replay != "tcp://[fd00::5]:5558" {
		t.Errorf("got %+v", w)
	}
	if err := w.Validate(); err != nil {
		t.Error(err)
	}
}

func TestDNSServices(t *testing.T) {
	z := startZone(t)
	z.set(func(z *zone) {
		z.records = []dnsmessage.ResourceBody{srv("pod-1.Workers.test.", 8001), srv("pod-0.workers.test.", 8000), srv("pod-0.workers.test.", 8002)}
	})
	f := run(t, z.source(RecordSRV))
	f.want("pod-0.workers.test-8000 pod-0.workers.test-8002 pod-1.workers.test-8001")
	if u := <-f.up; u.Workers[2].URL != "http://pod-1.workers.test:8001" {
		t.Errorf("got %q", u.Workers[2].URL)
	}
	// "No such service" is no list.
	z.set(func(z *zone) { z.records = []dnsmessage.ResourceBody{srv(".", 0)} })
	f.until(`error: cannot look up SRV records of "workers.test.": the answer lists no worker`,
		"pod-0.workers.test-8000 pod-0.workers.test-8002 pod-1.workers.test-8001")
}

// An answer too long for a datagram comes over TCP.
func TestDNSTruncation(t *testing.T) {
	z := startZone(t)
	var addrs, names []string
	for i := range 200 {
		addrs = append(addrs, fmt.Sprintf("10.0.1.%d", i))
		names = append(names, fmt.Sprintf("10.0.1.%d-8000", i))
	}
	slices.Sort(names)
	z.set(func(z *zone) { z.records, z.truncate = hosts(addrs...), true })
	run(t, z.source(RecordA)).want(strings.Join(names, " "))
	z.set(func(z *zone) {
		if z.overTCP == 0 {
			t.Error("nothing was asked over TCP")
		}
	})
}

// Whatever the server says but a list is an error, and the list comes again
// once the server does.
func TestDNSFailures(t *testing.T) {
	const trouble = `error: cannot look up A records of "workers.test.": `
	f := func(name, want string, fail, mend func(*zone)) {
		t.Run(name, func(t *testing.T) {
			z := startZone(t)
			z.set(func(z *zone) { z.records = hosts("10.0.0.1") })
			d := z.source(RecordA)
			d.Timeout = time.Second
			f := run(t, d)
			f.want("10.0.0.1-8000")
			z.set(fail)
			for got := f.next(); ; got = f.next() {
				if matched, _ := regexp.MatchString("^"+regexp.QuoteMeta(trouble)+want+"$", got); matched {
					break
				} else if got != "10.0.0.1-8000" {
					t.Fatalf("got %q, want %q", got, want)
				}
			}
			z.set(mend)
			for got := f.next(); got != "10.0.0.1-8000"; got = f.next() {
				if !strings.HasPrefix(got, "error: ") {
					t.Fatalf("got %q", got)
				}
			}
		})
	}
	code := func(c dnsmessage.RCode) func(*zone) {
		return func(z *zone) { z.code, z.records = c, nil }
	}
	mend := func(z *zone) { z.code, z.silent, z.records = 0, false, hosts("10.0.0.1") }
	f("NXDOMAIN", "there is no such name, or it has no such records", code(dnsmessage.RCodeNameError), mend)
	f("no records", "there is no such name, or it has no such records", code(dnsmessage.RCodeSuccess), mend)
	f("SERVFAIL", "server misbehaving", code(dnsmessage.RCodeServerFailure), mend)
	f("REFUSED", ".+", code(dnsmessage.RCodeRefused), mend)
	f("silence", "no answer within 1s", func(z *zone) { z.silent = true }, mend)
}

// A server that rotates through its records empties nothing; an address that
// stays away goes.
func TestDNSFlapping(t *testing.T) {
	z := startZone(t)
	all := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	z.set(func(z *zone) { z.records = hosts(all...) })
	d := z.source(RecordA)
	d.known = make(map[string]*found)
	ask := func(want string) {
		t.Helper()
		workers, err := d.ask(t.Context())
		var names []string
		for _, w := range workers {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(w.Name, "10.0.0."), "-8000"))
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	ask("1 2 3")
	for i := range 10 {
		z.set(func(z *zone) { z.records = hosts(all[i%3], all[(i+1)%3]) })
		ask("1 2 3")
	}
	z.set(func(z *zone) { z.records = hosts(all[0]) })
	ask("1 2 3") // 2 was in the answer before, 3 in the one before that
	z.set(func(z *zone) { z.code = dnsmessage.RCodeServerFailure })
	if _, err := d.ask(t.Context()); err == nil {
		t.Fatal("no error")
	}
	z.set(func(z *zone) { z.code = 0 })
	ask("1 2")
	ask("1")
	z.set(func(z *zone) { z.records = hosts(all...) })
	ask("1 2 3")
}

// lookUps is a Resolver of answers.
type lookUps func() ([]netip.Addr, error)

func (f lookUps) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) { return f() }

func (f lookUps) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	return "", nil, errors.New("not asked for")
}

func TestAddressName(t *testing.T) {
	f := func(host, port, want string) {
		t.Helper()
		if got := addressName(host, port); got != want || len(got) > maxName {
			t.Errorf("%s %s: got %q, want %q", host, port, got, want)
		}
	}
	f("10.0.0.1", "8000", "10.0.0.1-8000")
	f("::1", "65535", "0000-0000-0000-0000-0000-0000-0000-0001-65535")
	f("vllm-0.vllm.llm.svc.cluster.local", "8000", "vllm-0.vllm.llm.svc.cluster.local-8000")
	long := strings.Repeat("a", 60) + ".example"
	if a, b := addressName(long, "1"), addressName(long, "2"); a == b || len(a) > maxName || !strings.HasPrefix(a, "waaaa") {
		t.Errorf("got %q and %q", a, b)
	}
	if a, b := addressName("_a.example", "1"), addressName("-a.example", "1"); a == b || a[0] != 'w' {
		t.Errorf("got %q and %q", a, b)
	}
}

// FuzzAddressName: every name is one that configuration, metrics and headers
// accept.
func FuzzAddressName(f *testing.F) {
	f.Add("10.0.0.1", uint16(1))
	f.Add("fe80::1%eth0", uint16(80))
	f.Add("_http._tcp.example", uint16(443))
	f.Add("", uint16(0))
	f.Add("ä\xff ", uint16(9))
	valid := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	f.Fuzz(func(t *testing.T, host string, port uint16) {
		p := fmt.Sprint(port)
		name := addressName(host, p)
		if !valid.MatchString(name) {
			t.Errorf("%q is named %q", host, name)
		}
		if name != addressName(host, p) {
			t.Errorf("%q is not always named %q", host, name)
		}
	})
}

// After failures the pause grows from a second to the interval; after an answer
// it is the interval.
func TestDNSPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		fails.Store(true)
		d := &DNS{
			Name: "workers.test.", Type: RecordA, Port: 1, Interval: 10 * time.Second, RemoveAfter: 1, Template: Worker{URL: "http"},
			Resolver: lookUps(func() ([]netip.Addr, error) {
				if fails.Load() {
					return nil, &net.DNSError{Err: "server misbehaving", Name: "workers.test."}
				}
				return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
			}),
		}
		f := run(t, d)
		last := time.Now()
		pause := func(want time.Duration) {
			t.Helper()
			f.next()
			got := time.Since(last)
			last = time.Now()
			if got < want-want/10 || got > want+want/10 {
				t.Errorf("asked after %v, want about %v", got, want)
			}
		}
		for _, seconds := range []time.Duration{0, 1, 2, 4, 8, 10, 10} {
			pause(seconds * time.Second)
		}
		fails.Store(false)
		pause(10 * time.Second)
		pause(10 * time.Second)
		fails.Store(true)
		pause(10 * time.Second)
		pause(time.Second)
	})
}
