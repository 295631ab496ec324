package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RecordType is a DNS record type that lists workers.
type RecordType string

// The record types.
const (
	RecordA    RecordType = "a"
	RecordAAAA RecordType = "aaaa"
	RecordSRV  RecordType = "srv"
)

// Resolver asks the DNS; *net.Resolver is one. Its answers hold no TTL, so a
// DNS source asks at an interval.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (cname string, addrs []*net.SRV, err error)
}

// DNS is a Discoverer that follows a name in the DNS. Each address of an A or
// AAAA answer and each target of an SRV answer is a worker; priorities and
// weights of SRV records are not looked at, since the gateway balances by itself.
//
// No answer removes all workers: no such name, none of the records, a server
// that fails and one that is silent all keep the last list.
type DNS struct {
	Name string
	Type RecordType
	// Port is the workers' port; with SRV records the answer has it.
	Port int
	// Interval is the time between answers, with a tenth of jitter. After a
	// failure the next attempt comes sooner, at first after a second.
	Interval time.Duration
	// Timeout bounds an attempt; 0 means 10 seconds.
	Timeout time.Duration
	// RemoveAfter answers in a row that lack a worker remove it: a server that
	// rotates through a part of its records must not empty caches. At least 1.
	RemoveAfter int
	Resolver    Resolver
	// Template is what all workers have in common. Name and URL are set for each;
	// URL is the scheme alone, http or https. A host * in Events and Replay
	// stands for the worker's own.
	Template Worker

	known map[string]*found // by address
}

// found is a worker that an answer had.
type found struct {
	worker Worker
	missed int // answers in a row that lack it
}

const (
	defaultLookUp = 10 * time.Second
	firstRetry    = time.Second
)

// errNoRecords is an answer without a usable record.
var errNoRecords = errors.New("the answer lists no worker")

// Run implements Discoverer.
func (d *DNS) Run(ctx context.Context, up chan<- Update) {
	d.known = make(map[string]*found)
	retry := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		pause := d.Interval
		workers, err := d.ask(ctx)
		if err != nil {
			pause = min(retry, d.Interval)
			retry = 2 * pause
		} else {
			retry = firstRetry
		}
		if ctx.Err() != nil {
			return
		}
		send(ctx, up, Update{Workers: workers, Err: err})
		timer.Reset(jitter(pause))
	}
}

// ask makes a list of an answer and of what earlier ones had.
func (d *DNS) ask(ctx context.Context) ([]Worker, error) {
	timeout := d.Timeout
	if timeout <= 0 {
		timeout = defaultLookUp
	}
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	hosts, err := d.lookUp(asking)
	if err == nil && len(hosts) == 0 {
		err = errNoRecords
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look up %s records of %q: %w", strings.ToUpper(string(d.Type)), d.Name, d.explain(err, timeout))
	}
	return d.merge(hosts), nil
}

// explain shortens an error of the resolver, which repeats the name.
func (d *DNS) explain(err error, timeout time.Duration) error {
	e, ok := errors.AsType[*net.DNSError](err)
	switch {
	case !ok:
		return err
	case e.IsNotFound:
		return errors.New("there is no such name, or it has no such records")
	case e.IsTimeout:
		return fmt.Errorf("no answer within %v", timeout)
	}
	return errors.New(e.Err)
}

// lookUp returns the host and port of every worker of an answer.
func (d *DNS) lookUp(ctx context.Context) ([]string, error) {
	if d.Type == RecordSRV {
		return d.lookUpSRV(ctx)
	}
	network := map[RecordType]string{RecordA: "ip4", RecordAAAA: "ip6"}[d.Type]
	if network == "" {
		panic("BUG: DNS records of type " + strconv.Quote(string(d.Type)))
	}
	addrs, err := d.Resolver.LookupNetIP(ctx, network, d.Name)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, a := range addrs {
		hosts = append(hosts, net.JoinHostPort(a.Unmap().WithZone("").String(), strconv.Itoa(d.Port)))
	}
	return hosts, nil
}

// lookUpSRV leaves targets as names: certificates are made out to them, and a
// pod of a stateful set keeps its name when its address changes. The resolver
// returns an error beside the records when it has dropped a malformed one.
func (d *DNS) lookUpSRV(ctx context.Context) ([]string, error) {
	_, records, err := d.Resolver.LookupSRV(ctx, "", "", d.Name)
	if err != nil && len(records) == 0 {
		return nil, err
	}
	var hosts []string
	for _, r := range records {
		target := strings.ToLower(strings.TrimSuffix(r.Target, "."))
		if target == "" || r.Port == 0 {
			continue // "." says that there is no such service
		}
		hosts = append(hosts, net.JoinHostPort(target, strconv.Itoa(int(r.Port))))
	}
	return hosts, nil
}

// merge adds an answer to what is known, and removes what has been missing for
// long enough. The list is sorted, so that equal answers give equal lists.
func (d *DNS) merge(hosts []string) []Worker {
	for _, f := range d.known {
		f.missed++
	}
	for _, h := range hosts {
		f := d.known[h]
		if f == nil {
			f = &found{worker: d.worker(h)}
			d.known[h] = f
		}
		f.missed = 0
	}
	var workers []Worker
	for h, f := range d.known {
		if f.missed >= max(d.RemoveAfter, 1) {
			delete(d.known, h)
			continue
		}
		workers = append(workers, f.worker)
	}
	slices.SortFunc(workers, func(a, b Worker) int { return cmp.Compare(a.Name, b.Name) })
	return workers
}

// worker describes the worker at host:port.
func (d *DNS) worker(hostPort string) Worker {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		panic("BUG: a host and port that were joined: " + err.Error())
	}
	w := d.Template
	w.Name = addressName(host, port)
	w.URL = d.Template.URL + "://" + hostPort
	w.Events, w.Replay = withHost(w.Events, host), withHost(w.Replay, host)
	return w
}

// withHost puts a host in the place of the * of an endpoint.
func withHost(endpoint, host string) string {
	port, ok := strings.CutPrefix(endpoint, "tcp://*:")
	if !ok {
		return endpoint
	}
	return "tcp://" + net.JoinHostPort(host, port)
}

// maxName is the length of a worker's name that other parts accept.
const maxName = 63

// addressName derives a worker's name from its address: the same address always
// has the same name, so a worker that comes back goes on with its series. IPv6
// addresses are written in full, as a name can't begin with a colon; a long
// target name is cut and told apart by a hash.
func addressName(host, port string) string {
	if a, err := netip.ParseAddr(host); err == nil && a.Is6() {
		host = strings.ReplaceAll(a.StringExpanded(), ":", "-")
	}
	name := host + "-" + port
	clean := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' {
			return r
		}
		return '_'
	}, name)
	if clean == name && len(name) <= maxName && name[0] != '.' && name[0] != '-' && name[0] != '_' {
		return name
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("w%.40s-%016x", clean, h.Sum64())
}
