package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluicegate/sluice/gateway"
)

const (
	// reservedFiles are the file descriptors that no client connection and no connection to a worker for it
	// may take: those of the ledger, the logs, the workers' events, the probes of workers, the admin
	// listener.
	reservedFiles = 256
	// connectionMemory is what a client connection may take before there is a request on it.
	connectionMemory = 64 << 10
	// memoryShare is the part of the memory that all of them together may take: one in so many.
	memoryShare = 4
	// addressShare is the part of the connections that one address may have: one in so many.
	addressShare = 4
	// fewConnections is a number of connections that is worth a warning.
	fewConnections = 1000
)

// osLimits is what the system lets this process have.
type osLimits struct {
	files  int64 // descriptors
	memory int64 // bytes; 0: as much as there is
}

// readOSLimits asks the system. The runtime has raised the soft limit on descriptors to the hard one.
func readOSLimits() osLimits {
	l := osLimits{files: math.MaxInt64, memory: memoryLimit(os.DirFS("/"))}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur < math.MaxInt64 {
		l.files = int64(files.Cur)
	}
	return l
}

// memoryLimit is the least limit of the control groups that the process is in, or 0. What can't be read is
// no limit.
func memoryLimit(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		switch {
		case strings.Contains(","+parts[1]+",", ",memory,"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case parts[0] != "0" || parts[1] != "":
			continue
		}
		// A container sees its own group as the root, whatever path it has outside.
		for group := path.Join(mount, path.Clean("/"+parts[2])); strings.HasPrefix(group, mount); group = path.Dir(group) {
			if n := groupLimit(root, path.Join(group, file)); n > 0 {
				least = min(least, n)
			}
		}
	}
	if least >= 1<<60 { // what version 1 has for no limit
		return 0
	}
	return least
}

func groupLimit(root fs.FS, file string) int64 {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0 // "max"
	}
	return n
}

// reserve is what is kept of the descriptors, at most half of them.
func (l osLimits) reserve() int64 { return min(reservedFiles, l.files/2) }

// fit is how many client connections there can be with one to a worker for each.
func (l osLimits) fit() int64 { return (l.files - l.reserve()) / 2 }

// maxConnections is the most that is derived: beyond it other things give way first.
const maxConnections = 1 << 20

// connections is the bound on client connections, and by what it was found.
func (c *LimitsConfig) connections(l osLimits) (total int, because string) {
	if c.Connections > 0 {
		return c.Connections, "limits.connections"
	}
	n, because := l.fit(), fmt.Sprintf("half of %d file descriptors, less a reserve", l.files)
	if byMemory := l.memory / memoryShare / connectionMemory; l.memory > 0 && byMemory < n {
		n, because = byMemory, fmt.Sprintf("a quarter of %s of memory", ByteSize(l.memory))
	}
	if n > maxConnections {
		n, because = maxConnections, "the most that is taken unless limits.connections says so"
	}
	return int(max(n, 1)), because
}

// connectionsPerAddress is the bound on those of one address, of total in all.
func (c *LimitsConfig) connectionsPerAddress(total int) int {
	return cmp.Or(c.ConnectionsPerAddress, max(total/addressShare, 1))
}

// connections checks the bounds on client connections against each other and against the system.
func (v *validator) connections() {
	l, have := &v.cfg.Limits, readOSLimits()
	if l.Connections != 0 {
		v.count("limits.connections", int64(l.Connections), 16, maxConnections)
	}
	if l.ConnectionsPerAddress != 0 {
		v.count("limits.connectionsPerAddress", int64(l.ConnectionsPerAddress), 1, maxConnections)
	}
	if l.Connections > 0 && l.ConnectionsPerAddress > l.Connections {
		v.errorf("limits.connectionsPerAddress", "is %d, which is more than limits.connections, %d", l.ConnectionsPerAddress, l.Connections)
	}
	for _, text := range have.doubts(l) {
		v.warnf("limits.connections", "%s", text)
	}
}

// doubts are what is worth knowing of the bound on client connections.
func (l osLimits) doubts(c *LimitsConfig) (texts []string) {
	total, because := c.connections(l)
	switch {
	case int64(total) > l.fit():
		texts = append(texts, fmt.Sprintf("%d client connections, as many to workers and a reserve need %d file descriptors, this process may have %d; raise its limit (ulimit -n, LimitNOFILE=), or lower this",
			total, 2*int64(total)+reservedFiles, l.files))
	case c.Connections == 0 && total < fewConnections:
		texts = append(texts, fmt.Sprintf("at most %s can be connected at a time (%s)", count(total, "client"), because))
	}
	return texts
}

// respectMemory has the runtime collect its garbage in time for the memory that the process may have. An
// operator's own GOMEMLIMIT stays as it is.
func respectMemory(log *slog.Logger, l osLimits) {
	if l.memory == 0 || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := l.memory / 10 * 9 // the rest is for what the runtime doesn't count: tokenizers, SQLite, stacks of threads
	debug.SetMemoryLimit(limit)
	log.Info("memory limit", "cgroup", ByteSize(l.memory).String(), "heap", limit)
}

// capConnections sets the bounds on client connections.
func capConnections(gc *gateway.Config, c *LimitsConfig, l osLimits) {
	gc.Connections, _ = c.connections(l)
	gc.ConnectionsPerAddress = c.connectionsPerAddress(gc.Connections)
}

// connections says how many there may be.
func (c *checker) connections(l *LimitsConfig) {
	total, because := l.connections(readOSLimits())
	per := l.connectionsPerAddress(total)
	c.print("at most %s, %d of one address", count(total, "client connection"), per)
	if l.Connections == 0 {
		c.print(" (%s)", because)
	}
	c.print("\n")
	c.report.Connections = &connectionBound{total, per}
}

// connectionBound is the most client connections, in all and of one address.
type connectionBound struct {
	Total      int `json:"total"`
	PerAddress int `json:"perAddress"`
}
