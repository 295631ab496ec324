package qos

import (
	"fmt"
	"math"
	"time"
)

// Unbounded is a [Class] Bound that every worker is within.
const Unbounded = time.Duration(math.MaxInt64)

// Class is how requests of one class are treated.
type Class struct {
	Name string
	// Target is the time to first token that is promised, from arrival.
	Target time.Duration
	// MaxWait bounds the wait: a request whose first token is predicted later
	// than this after its arrival is refused then, and one that still waits in
	// the queue so long after it is refused, too.
	MaxWait time.Duration
	// Bound is a worker's predicted wait up to which it is given work of this
	// class. That of a less urgent class is not larger.
	Bound time.Duration
	// Share is the part of a pool's work, in tokens, that the class gets while it
	// waits there, whatever is more urgent; from 0. All together at most MaxShares.
	Share float64
	// MaxQueue bounds the entries of the class; 0 is Config.MaxEntries.
	MaxQueue int
	// Preemptible says that entries of this class may be taken out of the queue
	// (never off a worker) for more urgent ones when the queue is full.
	Preemptible bool
	// KeepAlive says that streams of this class get keep-alive comments while
	// they wait. The queue itself has no use of it.
	KeepAlive bool
	// WorkerPriority is the priority that engines are told which schedule by it, if
	// HasPriority; less is earlier. The queue itself has no use of it.
	WorkerPriority int64
	HasPriority    bool
}

// Limits of a configuration.
const (
	// MaxShares is the largest sum of all shares: the rest keeps the order of
	// classes meaning something.
	MaxShares = 0.9
	// MaxClasses is the largest number of classes.
	MaxClasses = 16
	// MaxPools is the largest number of pools of one entry.
	MaxPools = 16
)

// Config is how a Queue works.
type Config struct {
	// Classes are the classes, most urgent first.
	Classes []Class
	// MaxEntries bounds the entries of all classes.
	MaxEntries int
	// MaxBytes bounds the memory that entries stand for; see Entry.Bytes.
	MaxBytes int64
	// MaxTenantShare is the part of what others leave of MaxEntries and MaxBytes
	// that one tenant may hold: at 0.5, one alone has a half and two have a third
	// each, so that who comes next finds room.
	MaxTenantShare float64
	// Tries bounds the entries that a pump offers to one pool without a placement.
	Tries int
	// Slack is by how many tokens of work one tenant may be ahead of another for
	// the sake of a deadline.
	Slack int64
	// Memory is how long work of a tenant that has nothing waiting is remembered:
	// it fades by e in that time.
	Memory time.Duration
}

// DefaultConfig returns the defaults for classes of these names, most urgent
// first; see [DefaultClasses].
func DefaultConfig(names ...string) Config {
	return Config{
		Classes:        DefaultClasses(names...),
		MaxEntries:     100_000,
		MaxBytes:       256 << 20,
		MaxTenantShare: 0.5,
		Tries:          16,
		Slack:          8192,
		Memory:         10 * time.Second,
	}
}

// Defaults of classes.
const (
	defaultMaxWait = 30 * time.Second
	lastMaxWait    = 5 * time.Minute
	defaultShare   = 0.05
	largestBound   = time.Second
)

// DefaultClasses returns classes of these names, most urgent first, with the
// defaults of their places. Of four, the targets are 1 s, 2 s, 8 s and 60 s;
// fewer leave out the first ones, more repeat the third.
func DefaultClasses(names ...string) []Class {
	targets := []time.Duration{time.Second, 2 * time.Second, 8 * time.Second, time.Minute}
	if len(names) == 1 {
		targets = targets[1:2]
	} else if len(names) < len(targets) {
		targets = targets[len(targets)-len(names):]
	}
	classes := make([]Class, len(names))
	for i, name := range names {
		c := &classes[i]
		*c = Class{Name: name, Target: targets[min(i, max(0, len(targets)-2))], MaxWait: defaultMaxWait}
		if i > 0 {
			c.Share = min(defaultShare, MaxShares/float64(len(names)))
		}
		if i > 0 && i == len(names)-1 {
			c.Target, c.MaxWait = targets[len(targets)-1], lastMaxWait
		}
	}
	SetBounds(classes)
	return classes
}

// SetBounds sets the bound of each class that has none (0): a quarter of its
// target, at most a second, and at most half of the bound of the class before
// it, which leaves room for who is more urgent. It is of no harm if a bound is
// less than one step of an engine: see [Terms.Bound].
func SetBounds(classes []Class) {
	above := 2 * largestBound
	for i := range classes {
		c := &classes[i]
		if c.Bound == 0 {
			c.Bound = min(c.Target/4, largestBound, above/2)
		}
		above = c.Bound
	}
}

// Validate returns an error that names what is wrong, or nil.
func (c *Config) Validate() error {
	switch {
	case len(c.Classes) == 0:
		return fmt.Errorf("there is no class: name at least one")
	case len(c.Classes) > MaxClasses:
		return fmt.Errorf("there are %d classes, at most %d are possible", len(c.Classes), MaxClasses)
	case c.MaxEntries < 1:
		return fmt.Errorf("maxRequests is %d: it must be at least 1", c.MaxEntries)
	case c.MaxBytes < 1:
		return fmt.Errorf("maxBytes is %d: it must be at least 1", c.MaxBytes)
	case !(c.MaxTenantShare > 0 && c.MaxTenantShare <= 1):
		return fmt.Errorf("maxTenantShare is %v: it must be above 0 and at most 1", c.MaxTenantShare)
	case c.Tries < 2:
		return fmt.Errorf("tries is %d: it must be at least 2", c.Tries)
	case c.Slack < 0:
		return fmt.Errorf("slack is %d tokens: it must not be negative", c.Slack)
	case c.Memory <= 0:
		return fmt.Errorf("memory is %v: it must be above 0", c.Memory)
	}
	shares := 0.0
	names := make(map[string]bool)
	for i := range c.Classes {
		class := &c.Classes[i]
		if names[class.Name] {
			return fmt.Errorf("class %q is there twice", class.Name)
		}
		names[class.Name] = true
		if err := class.validate(); err != nil {
			return fmt.Errorf("class %q: %w", class.Name, err)
		}
		if i > 0 && class.Bound > c.Classes[i-1].Bound {
			return fmt.Errorf("class %q: bound %v is larger than %v of the more urgent class %q",
				class.Name, class.Bound, c.Classes[i-1].Bound, c.Classes[i-1].Name)
		}
		shares += class.Share
	}
	if shares > MaxShares+1e-9 {
		return fmt.Errorf("the shares of all classes add up to %.4g: at most %v is possible", shares, MaxShares)
	}
	return nil
}

func (c *Class) validate() error {
	switch {
	case c.Name == "":
		return fmt.Errorf("it has no name")
	case c.Target <= 0:
		return fmt.Errorf("target is %v: it must be above 0", c.Target)
	case c.MaxWait < c.Target:
		return fmt.Errorf("maxWait %v is less than target %v", c.MaxWait, c.Target)
	case c.Bound <= 0:
		return fmt.Errorf("bound is %v: it must be above 0", c.Bound)
	case !(c.Share >= 0 && c.Share <= MaxShares):
		return fmt.Errorf("share is %v: it must be 0 to %v", c.Share, MaxShares)
	case c.MaxQueue < 0:
		return fmt.Errorf("maxQueue is %d: it must not be negative", c.MaxQueue)
	}
	return nil
}
