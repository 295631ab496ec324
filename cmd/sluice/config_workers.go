package main

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// serves reports whether requests for the model can go to the pool.
func (p *PoolConfig) serves(model string) bool {
	return slices.Contains(p.Models, model) || slices.Contains(p.Adapters, model)
}

// maxListBytes bounds a file of workers.
const maxListBytes = 4 << 20

// workersFrom checks where a pool's changing list is, and the list itself if it is a file.
func (v *validator) workersFrom(at string, c *WorkersFromConfig, taken claims) {
	v.count(at+".maxWorkers", int64(c.MaxWorkers), 1, 4096)
	switch {
	case c.File != "" && c.DNS.Name != "":
		v.errorf(at, "has both file and dns.name; a list is in one place")
	case c.File != "":
		if !v.running {
			v.workersFile(c, taken)
		}
	case c.DNS.Name != "":
		v.dns(at+".dns", &c.DNS)
	case v.given(at + ".dns."):
		v.errorf(at+".dns.name", "is missing, should be the name whose records list the workers")
	case v.given(at + "."):
		v.errorf(at, "does not say where the workers are listed; give file or dns.name")
	}
}

// given reports whether the file has a key whose path begins with prefix.
func (v *validator) given(prefix string) bool {
	for path := range v.positions {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// workersFile checks a file of workers. That it can't be read is found by files.
func (v *validator) workersFile(c *WorkersFromConfig, taken claims) {
	data, err := plainfile.Read(c.File, maxListBytes)
	if err != nil {
		return
	}
	list, of := decodeWorkers(c.File, data, c.MaxWorkers, taken)
	v.errors = append(v.errors, of.errors...)
	if len(of.errors) == 0 && len(list) == 0 {
		of.warnf("", "the list is empty: the pool has no workers of it until the file has some")
		v.warnings = append(v.warnings, of.warnings...)
	}
}

// parseWorkers reads a file of workers. The error is a *ConfigError.
func parseWorkers(file string, data []byte, most int) ([]WorkerConfig, error) {
	list, v := decodeWorkers(file, data, most, newClaims(nil))
	if len(v.errors) > 0 {
		sortIssues(v.errors)
		return nil, &ConfigError{Issues: v.errors}
	}
	return list, nil
}

// decodeWorkers reads a list of workers as strictly as the configuration. A file without a list is an
// error, since it is what a write that went wrong leaves; `[]` is a list.
func decodeWorkers(file string, data []byte, most int, taken claims) ([]WorkerConfig, *validator) {
	var list []WorkerConfig
	d := yamlDecoder{file: file}
	d.decode(data, &list)
	v := &validator{file: file, positions: d.positions, errors: d.issues}
	switch {
	case len(d.issues) > 0:
	case list == nil:
		v.errorf("", "holds no list, should be a list of workers; write [] to remove all of them on purpose")
	case len(list) > most:
		v.errorf("", "lists %d workers, more than the pool's workersFrom.maxWorkers (%d)", len(list), most)
	default:
		v.workers("", list, taken)
	}
	return list, v
}

var hostPattern = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

// dns checks a name whose records list workers.
func (v *validator) dns(at string, c *DNSConfig) {
	if !hostPattern.MatchString(c.Name) || len(c.Name) > 253 {
		v.errorf(at+".name", "%q is no DNS name, should be one as in workers.default.svc.cluster.local", clip(c.Name))
	}
	v.oneOf(at+".type", c.Type, "a", "aaaa", "srv")
	v.count(at+".port", int64(c.Port), 1, 65535)
	v.oneOf(at+".scheme", c.Scheme, "http", "https")
	v.duration(at+".interval", c.Interval, 100*time.Millisecond, time.Hour)
	v.count(at+".removeAfter", int64(c.RemoveAfter), 1, 1000)
	if c.Server != "" {
		host, port, err := net.SplitHostPort(c.Server)
		if n, numErr := strconv.ParseUint(port, 10, 16); err != nil || numErr != nil || n == 0 || host == "" {
			v.errorf(at+".server", "%q is not allowed, should be a server's host:port as in 10.0.0.2:53", clip(c.Server))
		}
	}
	// The rest is what a worker of the list would have, with some host.
	of := func(endpoint string) string { return strings.Replace(endpoint, "tcp://*:", "tcp://worker:", 1) }
	v.workerEvents(at, &WorkerConfig{Events: of(c.Events), Replay: of(c.Replay), Ranks: c.Ranks}, new([]endpointUse))
	for _, e := range []struct{ key, value string }{{"events", c.Events}, {"replay", c.Replay}} {
		if strings.HasPrefix(e.value, "tcp://") && !strings.HasPrefix(e.value, "tcp://*:") {
			v.errorf(at+"."+e.key, "%q is one endpoint for all workers, should have * in the place of the worker's host as in tcp://*:5557", clip(e.value))
		}
	}
}

// listed is how many workers the list has now; 0 if that is not known before the gateway runs.
func (c *WorkersFromConfig) listed() int {
	if c.File == "" {
		return 0
	}
	data, err := plainfile.Read(c.File, maxListBytes)
	if err != nil {
		return 0
	}
	list, err := parseWorkers(c.File, data, c.MaxWorkers)
	if err != nil {
		return 0
	}
	return len(list)
}

// describe returns where the workers are listed, for messages.
func (c *WorkersFromConfig) describe() string {
	if c.File != "" {
		return "file " + c.File
	}
	return fmt.Sprintf("%s records of %s", strings.ToUpper(c.DNS.Type), c.DNS.Name)
}
