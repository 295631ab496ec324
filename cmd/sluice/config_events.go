package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// maxRanks bounds the data-parallel ranks of a worker, as package scoring does.
const maxRanks = 256

// endpointUse is a range of ports of one host that a worker's configuration claims.
type endpointUse struct {
	path        string // of the key that claims it
	host        string // "" for every address of this host
	first, last int    // ports
	ours        bool   // an endpoint that the gateway listens on
}

// workerEvents checks where a worker's cache events come from. used collects the endpoints of all
// workers: two of them on one would be taken for each other.
func (v *validator) workerEvents(at string, w *WorkerConfig, used *[]endpointUse) {
	ranks := max(1, w.Ranks)
	if w.Ranks < 0 || w.Ranks > maxRanks {
		v.errorf(at+".ranks", "is %d, should be between 1 and %d", w.Ranks, maxRanks)
		ranks = 1
	}
	var own []endpointUse
	switch {
	case w.EventsBind != "":
		v.boundEvents(at, w)
		own = append(own, v.endpointUse(at+".eventsBind", w.EventsBind, ranks, true)...)
	case w.EventsFrom != "":
		v.errorf(at+".eventsFrom", "is given without eventsBind; it says who may connect there")
	}
	switch {
	case w.EventsBind != "":
	case w.Events == EventsAuto:
		v.learnedEvents(at, w)
	case w.Events == EventsNone:
		if w.Replay != "" {
			v.errorf(at+".replay", "is given while events is %q; there is nothing to replay", EventsNone)
		}
		if w.Ranks != 0 {
			v.errorf(at+".ranks", "is given while events is %q; there are no events to tell ranks by", EventsNone)
		}
	default:
		v.zmqEndpoint(at+".events", w.Events, `"auto", "none" or a ZMQ endpoint as in tcp://10.0.0.5:5557`)
		own = append(own, v.endpointUse(at+".events", w.Events, ranks, false)...)
	}
	if w.Replay != "" && (w.EventsBind != "" || w.Events != EventsAuto && w.Events != EventsNone) {
		v.zmqEndpoint(at+".replay", w.Replay, "a ZMQ endpoint as in tcp://10.0.0.5:5558")
		own = append(own, v.endpointUse(at+".replay", w.Replay, ranks, false)...)
	}
	for _, u := range own {
		v.claimEndpoint(u, ranks, used)
	}
}

// learnedEvents checks a worker that says itself where its events come from.
func (v *validator) learnedEvents(at string, w *WorkerConfig) {
	if w.Replay != "" {
		v.errorf(at+".replay", "is given while events is %q, which learns both from the worker; give both endpoints or neither", EventsAuto)
	}
	if w.Ranks != 0 {
		v.errorf(at+".ranks", "is given while events is %q, which learns them from the worker; give the endpoint of rank 0 or leave ranks out", EventsAuto)
	}
}

// boundEvents checks a worker whose publisher connects to the gateway.
func (v *validator) boundEvents(at string, w *WorkerConfig) {
	if w.Events != EventsAuto {
		v.errorf(at+".eventsBind", "is given beside events: %q; either the worker connects to the gateway or the gateway to the worker", clip(w.Events))
	}
	const should = "an address of the gateway as in tcp://*:6001 or tcp://10.0.0.1:6001"
	host, _, ok := splitEndpoint(w.EventsBind)
	if _, err := netip.ParseAddr(host); !ok || host != "*" && err != nil {
		v.errorf(at+".eventsBind", "%q is not allowed, should be %s", clip(w.EventsBind), should)
	}
	if w.EventsFrom == "" {
		return
	}
	from := w.EventsFrom
	prefix, err := netip.ParsePrefix(from)
	switch {
	case err == nil && prefix.Bits() == 0:
		v.warnf(at+".eventsFrom", "everyone who reaches %s can say what %q has cached", w.EventsBind, clip(w.Name))
	case err != nil && (strings.ContainsAny(from, "/: ") || len(from) > 253):
		if _, err := netip.ParseAddr(from); err != nil {
			v.errorf(at+".eventsFrom", "%q is not allowed, should be a host name, an address or a prefix as in 10.0.0.0/8", clip(from))
		}
	}
}

// splitEndpoint takes tcp://host:port apart; ok is false for anything else.
func splitEndpoint(endpoint string) (host string, port int, ok bool) {
	rest, tcp := strings.CutPrefix(endpoint, "tcp://")
	host, text, err := net.SplitHostPort(rest)
	if !tcp || err != nil || host == "" {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, false
	}
	return host, int(n), true
}

// endpointUse returns the ports that the ranks behind an endpoint take; none for an endpoint that is
// wrong in another way.
func (v *validator) endpointUse(path, endpoint string, ranks int, ours bool) []endpointUse {
	host, port, ok := splitEndpoint(endpoint)
	if !ok {
		return nil
	}
	if port+ranks-1 > 65535 {
		v.errorf(path, "with %d ranks the last one would use port %d, which does not exist", ranks, port+ranks-1)
		return nil
	}
	if ours && (host == "*" || host == "0.0.0.0" || host == "::") {
		host = ""
	}
	return []endpointUse{{path, strings.ToLower(host), port, port + ranks - 1, ours}}
}

// listenUse returns the ports that clients and operators connect to.
func (v *validator) listenUse() []endpointUse {
	var used []endpointUse
	for _, l := range []struct{ path, address string }{
		{"listen.public.address", v.cfg.Listen.Public.Address}, {"listen.admin.address", v.cfg.Listen.Admin.Address},
	} {
		host, text, err := net.SplitHostPort(l.address)
		port, perr := strconv.ParseUint(text, 10, 16)
		if err != nil || perr != nil || port == 0 {
			continue // a free port, or an error that listen() reports
		}
		if host == "0.0.0.0" || host == "::" {
			host = ""
		}
		used = append(used, endpointUse{l.path, strings.ToLower(host), int(port), int(port), true})
	}
	return used
}

// claimEndpoint records an error if a port of u is in use already.
func (v *validator) claimEndpoint(u endpointUse, ranks int, used *[]endpointUse) {
	for _, o := range *used {
		sameHost := o.host == u.host || u.ours && (o.host == "" || u.host == "")
		if o.ours != u.ours || !sameHost || u.first > o.last || o.first > u.last {
			continue
		}
		of := ""
		if ranks > 1 || o.last > o.first {
			of = fmt.Sprintf("; rank r uses the port of rank 0 plus r, so the ports from %d to %d are taken", o.first, o.last)
		}
		v.errorf(u.path, "port %d is taken by %s; every publisher needs one of its own%s", max(u.first, o.first), o.path, of)
		break
	}
	*used = append(*used, u)
}
