package main

import (
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// TestPortTaken names the key, the address and who has it.
func TestPortTaken(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		taken, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s can't be listened on here: %v", address, err)
			continue
		}
		defer taken.Close()
		_, port, _ := net.SplitHostPort(taken.Addr().String())
		at := strings.TrimSuffix(address, "0") + port
		_, err = listenTCP("public", at)
		if err == nil {
			t.Fatalf("%s was taken twice", at)
		}
		for _, part := range []string{"cannot listen on listen.public.address", port, syscall.EADDRINUSE.Error(), "; process " + strconv.Itoa(os.Getpid()) + " ("} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q lacks %q", err, part)
			}
		}
	}
	if _, err := listenTCP("admin", "192.0.2.1:0"); err == nil || !strings.Contains(err.Error(), "no interface of this machine has that address") {
		t.Errorf("an address of somebody else: %v", err)
	}
}

func TestHolder(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(at, state, inode string) string {
		return "   0: " + at + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000  1000        0 " + inode + " 1 0000000000000000 100 0 0 10 0\n"
	}
	link := func(to string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(to), Mode: os.ModeSymlink} }
	root := fstest.MapFS{
		"proc/net/tcp":  {Data: []byte(head + line("0100007F:1F90", "01", "5") + line("0100007F:1F90", "0A", "77") + line("00000000:2382", "0A", "88") + "nonsense\n")},
		"proc/net/tcp6": {Data: []byte(head + line("00000000000000000000000001000000:1F91", "0A", "99"))},
		"proc/12/fd/3":  link("pipe:[77]"), "proc/12/comm": {Data: []byte("other\n")},
		"proc/34/fd/7": link("socket:[77]"), "proc/34/comm": {Data: []byte("nginx\n")},
		"proc/56/fd/7": link("socket:[88]"),
		"proc/self":    {Data: nil},
	}
	for address, want := range map[string]string{
		"127.0.0.1:8080": "; process 34 (nginx) has it",
		"0.0.0.0:8080":   "; process 34 (nginx) has it",
		":8080":          "; process 34 (nginx) has it",
		"localhost:8080": "; process 34 (nginx) has it",
		"127.0.0.2:8080": "",
		"127.0.0.2:9090": "; process 56 (?) has it",
		"[::1]:8081":     "; a process that this user may not look at has it",
		"127.0.0.1:9999": "",
		"nonsense":       "",
	} {
		if got := holderOf(root, address); got != want {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
	if got := holderOf(fstest.MapFS{}, "127.0.0.1:8080"); got != "" {
		t.Errorf("without /proc: %q", got)
	}
}
