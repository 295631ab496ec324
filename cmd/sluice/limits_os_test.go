package main

import (
	"math"
	"strings"
	"testing"
	"testing/fstest"
)

func TestMemoryLimit(t *testing.T) {
	f := func(want int64, files map[string]string) {
		t.Helper()
		root := fstest.MapFS{}
		for name, text := range files {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := memoryLimit(root); got != want {
			t.Errorf("got %d, want %d of %v", got, want, files)
		}
	}
	f(0, nil)
	f(0, map[string]string{"proc/self/cgroup": "0::/\n"})
	f(512<<20, map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"})
	f(0, map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"})
	f(1000, map[string]string{
		"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/memory.max": "2000\n",
	})
	f(3000, map[string]string{"proc/self/cgroup": "0::/outside/of/here\n", "sys/fs/cgroup/memory.max": "3000\n"})
	f(4000, map[string]string{
		"proc/self/cgroup": "9:cpu,memory:/docker/x\n0::/\n", "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "4000\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
	})
	f(0, map[string]string{"proc/self/cgroup": "9:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
	f(0, map[string]string{"proc/self/cgroup": "nonsense\n0::/../..\n"})
}

func TestConnectionLimits(t *testing.T) {
	for _, c := range []struct {
		limits     osLimits
		config     LimitsConfig
		total, per int
		doubt      string
	}{
		{limits: osLimits{files: 1 << 20}, total: 524160, per: 131040},
		{limits: osLimits{files: math.MaxInt64}, total: maxConnections, per: maxConnections / 4},
		{limits: osLimits{files: 1024}, total: 384, per: 96, doubt: "at most 384 clients can be connected at a time (half of 1024 file descriptors, less a reserve)"},
		{limits: osLimits{files: 256}, total: 64, per: 16, doubt: "at most 64 clients"},
		{limits: osLimits{files: 4}, total: 1, per: 1, doubt: "at most 1 client can"},
		{limits: osLimits{files: 1 << 20, memory: 1 << 30}, total: 4096, per: 1024},
		{limits: osLimits{files: 1 << 20, memory: 128 << 20}, total: 512, per: 128, doubt: "a quarter of 128MiB of memory"},
		{limits: osLimits{files: 1 << 20, memory: 128 << 20}, config: LimitsConfig{Connections: 5000}, total: 5000, per: 1250},
		{limits: osLimits{files: 1024}, config: LimitsConfig{Connections: 5000, ConnectionsPerAddress: 7}, total: 5000, per: 7,
			doubt: "5000 client connections, as many to workers and a reserve need 10256 file descriptors, this process may have 1024"},
	} {
		total, because := c.config.connections(c.limits)
		per := c.config.connectionsPerAddress(total)
		if total != c.total || per != c.per || because == "" {
			t.Errorf("%+v: got %d and %d (%s), want %d and %d", c.limits, total, per, because, c.total, c.per)
		}
		got := strings.Join(c.limits.doubts(&c.config), "; ")
		if c.doubt == "" && got != "" || !strings.Contains(got, c.doubt) {
			t.Errorf("%+v: the doubts are %q, want %q", c.limits, got, c.doubt)
		}
	}
}
