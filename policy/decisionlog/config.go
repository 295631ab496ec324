package decisionlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Config says what is written and where. [DefaultConfig] has the defaults.
type Config struct {
	// Path of the file that is written now. Rotated files lie beside it, with the
	// UTC time of the rotation in their names.
	Path string
	// MaxBytes is the size beyond which a file is rotated; MaxFiles is how many
	// rotated files are kept, 0 for all. Compress makes them gzip files.
	MaxBytes int64
	MaxFiles int
	Compress bool
	// Sample is the share of decisions that are kept, by verdict. Only the share
	// of "allow" may be below 1, and it applies to plain allows alone: ones
	// without a warning, a rehearsed denial, an error, or a binding with Audit.
	Sample map[string]float64
	// Queue is how many records may wait for the disk, and QueueBytes how many
	// bytes of them.
	Queue      int
	QueueBytes int64
	// Refuse makes [Log.Ready] false while the queue is full, so that a request
	// is refused rather than served without a record.
	Refuse bool
	// HashKey keys the hashes of request.user, request.session_id and
	// request.source_ip: 32 bytes or more, the same on every replica. Without it
	// the records say only that they were given.
	HashKey []byte
	// Plain names those of user, session_id and source_ip that are written as
	// they are.
	Plain []string
	// Mask and Drop are JSON pointers (RFC 6901) into the records. Mask hides the
	// texts and numbers of a value and keeps its shape, Drop takes the value out.
	// The record lists both.
	Mask, Drop []string
	// Gateway is the name of this gateway in the records.
	Gateway string
}

// DefaultConfig keeps every decision, in ten compressed files of 100 MiB beside
// the current one.
func DefaultConfig() Config {
	return Config{MaxBytes: 100 << 20, MaxFiles: 10, Compress: true, Queue: 8192, QueueBytes: 64 << 20}
}

// The bounds of a configuration.
const (
	minFileBytes  = 64 << 10
	maxQueue      = 1 << 20
	minQueueBytes = 1 << 20
	minHashKey    = 32
	maxPointers   = 64
)

// verdicts are what a share can be given for.
var verdicts = []string{"allow", "deny"}

// plainFields are the variables that are hashed unless listed in Plain.
var plainFields = []string{"user", "session_id", "source_ip"}

// Problem is a fault of one field of a Config.
type Problem struct {
	// Field is the path in words of a configuration file, such as mask[1].
	Field string
	// Text says what is wrong and what would be right.
	Text string
}

// Problems lists what is wrong, in the order of the fields; none means that
// [Open] can only fail for the file's sake. It opens nothing.
func (c *Config) Problems() []Problem {
	var out []Problem
	add := func(field, format string, args ...any) {
		out = append(out, Problem{field, fmt.Sprintf(format, args...)})
	}
	if c.Path == "" {
		add("path", "is missing, should be the file to write")
	}
	if c.MaxBytes < minFileBytes {
		add("maxBytes", "is %d, should be at least %d", c.MaxBytes, minFileBytes)
	}
	if c.MaxFiles < 0 {
		add("maxFiles", "is %d, should be the number of rotated files to keep, or 0 for all", c.MaxFiles)
	}
	c.sampleProblems(add)
	if c.Queue < 1 || c.Queue > maxQueue {
		add("queue", "is %d, should be between 1 and %d records", c.Queue, maxQueue)
	}
	if c.QueueBytes < minQueueBytes {
		add("queueBytes", "is %d, should be at least %d", c.QueueBytes, minQueueBytes)
	}
	if n := len(c.HashKey); n > 0 && n < minHashKey {
		add("hashKeyFile", "holds %d bytes, should hold %d random bytes or more; for example: openssl rand -out decisions.key 32", n, minHashKey)
	}
	for i, name := range c.Plain {
		if !slices.Contains(plainFields, name) {
			add(fmt.Sprintf("plain[%d]", i), "%q is unknown, should be one of %s", clip(name), strings.Join(plainFields, ", "))
		}
	}
	pointerProblems("mask", c.Mask, add)
	pointerProblems("drop", c.Drop, add)
	for i, p := range c.Mask {
		if at := slices.Index(c.Drop, p); at >= 0 {
			add(fmt.Sprintf("mask[%d]", i), "%q is in drop as well, which takes the value out; give it once", clip(p))
		}
	}
	return out
}

func (c *Config) sampleProblems(add func(field, format string, args ...any)) {
	names := make([]string, 0, len(c.Sample))
	for name := range c.Sample {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		share := c.Sample[name]
		switch {
		case !slices.Contains(verdicts, name):
			add("sample."+name, "is no verdict; shares are given for %s", strings.Join(verdicts, " and "))
		case !(share >= 0 && share <= 1):
			add("sample."+name, "is %v, should be a share between 0 and 1", share)
		case name != "allow" && share != 1:
			add("sample."+name, "is %v, should be 1: only plain allows can be sampled", share)
		}
	}
}

func pointerProblems(field string, pointers []string, add func(field, format string, args ...any)) {
	if len(pointers) > maxPointers {
		add(field, "has %d entries, should have at most %d", len(pointers), maxPointers)
	}
	for i, p := range pointers {
		if err := checkPointer(p); err != nil {
			add(fmt.Sprintf("%s[%d]", field, i), "%v", err)
		}
	}
}

// validate is Problems as one error.
func (c *Config) validate() error {
	var errs []error
	for _, p := range c.Problems() {
		errs = append(errs, fmt.Errorf("%s %s", p.Field, p.Text))
	}
	return errors.Join(errs...)
}

// clip bounds a value that an error quotes.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
