package scoring

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestOutOfResources(t *testing.T) {
	dial := func(e syscall.Errno) error {
		return fmt.Errorf("cannot call: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", e)})
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{dial(syscall.EMFILE), true},
		{dial(syscall.ENFILE), true},
		{dial(syscall.ENOBUFS), true},
		{dial(syscall.ENOMEM), true},
		{dial(syscall.EADDRNOTAVAIL), true},
		{dial(syscall.ECONNREFUSED), false},
		{dial(syscall.ECONNRESET), false},
		{dial(syscall.ETIMEDOUT), false},
		{dial(syscall.EHOSTUNREACH), false},
		{&net.DNSError{Name: "w", Err: "dial udp: socket: too many open files"}, true},
		{&net.DNSError{Name: "w", Err: "no such host"}, false},
		{errors.New("broken"), false},
	} {
		if got := OutOfResources(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}

func TestFaultNames(t *testing.T) {
	seen := map[string]bool{}
	for f := Fault(0); f <= FaultCredential; f++ {
		if seen[f.String()] {
			t.Errorf("%d is named like another: %s", f, f)
		}
		seen[f.String()] = true
		if f.Provoked() != (f == FaultAnswer) {
			t.Errorf("%s is provoked: %v", f, f.Provoked())
		}
	}
}
