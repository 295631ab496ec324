package main

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// listen takes the ports. It is the first step of a start: whoever has a port already is told of at once, not
// after the loading, and nothing has been opened or changed by then.
func (a *app) listen() error {
	var publicErr, adminErr error
	if a.public, publicErr = listenTCP("public", a.cfg.Listen.Public.Address); publicErr == nil {
		a.onClose(ignoreClosed(a.public))
	}
	if a.admin, adminErr = listenTCP("admin", a.cfg.Listen.Admin.Address); adminErr == nil {
		a.onClose(ignoreClosed(a.admin))
	}
	return errors.Join(publicErr, adminErr)
}

func listenTCP(name, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err == nil {
		return ln, nil
	}
	hint := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		hint = cmp.Or(holderOf(os.DirFS("/"), address), "; stop what listens there, or choose another address")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		hint = "; no interface of this machine has that address"
	case errors.Is(err, syscall.EACCES):
		hint = "; ports below 1024 need a privilege (CAP_NET_BIND_SERVICE)"
	}
	return nil, fmt.Errorf("cannot listen on listen.%s.address: %w%s", name, err, hint)
}

// holderOf says which process listens on an address, as far as this one may see that; empty if it can't.
func holderOf(root fs.FS, address string) string {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return ""
	}
	host, _, _ := net.SplitHostPort(address)
	wanted, _ := netip.ParseAddr(host)
	inodes := listeners(root, "proc/net/tcp", wanted, uint16(port))
	inodes = append(inodes, listeners(root, "proc/net/tcp6", wanted, uint16(port))...)
	if len(inodes) == 0 {
		return ""
	}
	processes, err := fs.Glob(root, "proc/[0-9]*")
	if err != nil {
		return ""
	}
	for _, dir := range processes {
		if !holds(root, dir, inodes) {
			continue
		}
		name := "?"
		if text, err := fs.ReadFile(root, dir+"/comm"); err == nil {
			name = strings.TrimSpace(string(text))
		}
		return fmt.Sprintf("; process %s (%s) has it", filepath.Base(dir), name)
	}
	return "; a process that this user may not look at has it"
}

// holds reports whether a process has one of the sockets open.
func holds(root fs.FS, dir string, inodes []string) bool {
	entries, err := fs.ReadDir(root, dir+"/fd")
	if err != nil {
		return false
	}
	for _, e := range entries {
		link, err := fs.ReadLink(root, dir+"/fd/"+e.Name())
		if err == nil && slices.Contains(inodes, strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")) {
			return true
		}
	}
	return false
}

// listeners returns the inodes of the sockets that listen on a port, on the wanted address or on all.
func listeners(root fs.FS, file string, wanted netip.Addr, port uint16) (inodes []string) {
	f, err := root.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	const stateListen = "0A"
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != stateListen {
			continue
		}
		at, ok := kernelAddress(fields[1])
		if !ok || at.Port() != port {
			continue
		}
		if ip := at.Addr().Unmap(); !wanted.IsValid() || wanted.IsUnspecified() || ip.IsUnspecified() || ip == wanted.Unmap() {
			inodes = append(inodes, fields[9])
		}
	}
	return inodes
}

// kernelAddress reads an address as /proc/net/tcp has it: words of 32 bits in the order of the machine, of
// which all that this runs on is little-endian.
func kernelAddress(text string) (netip.AddrPort, bool) {
	addr, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(addr)
	n, perr := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || perr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	ip, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip, uint16(n)), ok
}
