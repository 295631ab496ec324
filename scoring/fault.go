package scoring

import (
	"errors"
	"strings"
	"syscall"
)

// Fault is what a request that failed says about its worker. A request that failed
// by its own doing, or for want of what the machine in front of the worker lacks,
// says nothing and is none.
type Fault uint8

const (
	// FaultTransport is a connection that could not be made or was lost, or an answer
	// that is not HTTP.
	FaultTransport Fault = iota + 1
	// FaultTimeout is a worker that sent nothing for too long.
	FaultTimeout
	// FaultAnswer is an answer in which the worker says that it failed, or that it
	// can't have meant. A request can provoke such answers.
	FaultAnswer
	// FaultStale is a worker that does not serve what it is known to serve.
	FaultStale
	// FaultCredential is a worker that refuses the key that it is called with.
	FaultCredential
)

// String names the fault.
func (f Fault) String() string {
	switch f {
	case FaultTransport:
		return "transport"
	case FaultTimeout:
		return "timeout"
	case FaultAnswer:
		return "answer"
	case FaultStale:
		return "stale"
	case FaultCredential:
		return "credential"
	}
	return "none"
}

// Provoked reports whether a request can bring the fault about at a worker that is
// well, so that it takes several callers to believe it.
func (f Fault) Provoked() bool { return f == FaultAnswer }

// OutOfResources reports whether a call failed because this machine had no room for
// it: no descriptors, ports, buffers or memory. That says nothing about whoever was
// to be called.
func OutOfResources(err error) bool {
	if err == nil {
		return false
	}
	for _, e := range [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	// A name that can't be looked up for want of a socket keeps the text alone.
	text := err.Error()
	return strings.Contains(text, syscall.EMFILE.Error()) || strings.Contains(text, syscall.ENFILE.Error())
}
