package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// QoSConfig says what the classes of policy.classes mean while there is more work than workers.
type QoSConfig struct {
	Enabled     bool                      `yaml:"enabled"`     // requests wait for workers here, and not at them
	Classes     map[string]QoSClassConfig `yaml:"classes"`     // by name; a class that is not there has the defaults of its place
	MaxRequests int                       `yaml:"maxRequests"` // that wait, of all classes
	MaxBytes    ByteSize                  `yaml:"maxBytes"`    // that those take
}

// QoSClassConfig is one class. What is byPlace has the default of the class's place in policy.classes.
type QoSClassConfig struct {
	Target         time.Duration `yaml:"target"`         // time to first token, from arrival
	MaxWait        time.Duration `yaml:"maxWait"`        // the most that a first token may take; what is predicted to take longer is refused
	Bound          time.Duration `yaml:"bound"`          // a worker's predicted wait up to which it gets work of the class
	Share          float64       `yaml:"share"`          // of a pool's work, whatever is more urgent
	MaxQueue       int           `yaml:"maxQueue"`       // requests that wait; 0: as many as of all classes
	Preemptible    bool          `yaml:"preemptible"`    // gives way to more urgent requests when the queue is full
	KeepAlive      bool          `yaml:"keepAlive"`      // streams get keep-alive comments while they wait
	WorkerPriority int           `yaml:"workerPriority"` // for pools with priorityScheduling; less is earlier
}

// byPlace stands for a duration that is not given, byPlaceShare for a share: what nobody writes into a file, and
// what can't be written.
const byPlace = time.Duration(math.MinInt64)

var byPlaceShare = math.Inf(-1)

// setDefaults fills a class before its keys are decoded.
func (c *QoSClassConfig) setDefaults() {
	c.Target, c.MaxWait, c.Bound, c.Share = byPlace, byPlace, byPlace, byPlaceShare
}

func defaultQoS() QoSConfig {
	q := qos.DefaultConfig()
	return QoSConfig{Enabled: true, MaxRequests: q.MaxEntries, MaxBytes: ByteSize(q.MaxBytes)}
}

// queue returns the queue's configuration for classes of these names, most urgent first.
func (c *QoSConfig) queue(names []string) qos.Config {
	q := qos.DefaultConfig(names...)
	q.MaxEntries, q.MaxBytes = c.MaxRequests, int64(c.MaxBytes)
	for i := range q.Classes {
		class := &q.Classes[i]
		class.Bound = 0 // follows from the target
		if given, ok := c.Classes[class.Name]; ok {
			given.overlay(class)
		}
	}
	qos.SetBounds(q.Classes)
	return q
}

// overlay puts what is given in place of the defaults of the class's place.
func (c *QoSClassConfig) overlay(class *qos.Class) {
	if c.Target != byPlace {
		class.Target, class.MaxWait = c.Target, max(class.MaxWait, c.Target)
	}
	if c.MaxWait != byPlace {
		class.MaxWait = c.MaxWait
	}
	if c.Bound != byPlace {
		class.Bound = c.Bound
	}
	if c.Share != byPlaceShare {
		class.Share = c.Share
	}
	class.MaxQueue, class.Preemptible, class.KeepAlive = c.MaxQueue, c.Preemptible, c.KeepAlive
	class.WorkerPriority, class.HasPriority = int64(c.WorkerPriority), c.WorkerPriority != 0
}

// qos checks the classes one by one, and then as the queue sees them.
func (v *validator) qos() {
	c, names := &v.cfg.QoS, v.cfg.Policy.Classes
	before := len(v.errors)
	v.count("qos.maxRequests", int64(c.MaxRequests), 1, 10_000_000)
	if c.MaxBytes < MiB || c.MaxBytes > 1024*GiB {
		v.errorf("qos.maxBytes", "is %s, should be between 1MiB and 1024GiB", c.MaxBytes)
	}
	if len(names) > qos.MaxClasses {
		v.errorf("policy.classes", "has %d entries, should have at most %d", len(names), qos.MaxClasses)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Classes)) {
		if !slices.Contains(names, name) {
			v.errorf("qos.classes."+name, "is no class of policy.classes%s", suggest(name, names))
			continue
		}
		v.qosClass("qos.classes."+name, c.Classes[name])
	}
	faultyNames := slices.ContainsFunc(v.errors, func(i Issue) bool { return strings.HasPrefix(i.Path, "policy.classes") })
	if len(v.errors) > before || faultyNames {
		return
	}
	queue := c.queue(names)
	v.shares(queue.Classes)
	for i := range queue.Classes {
		b := &queue.Classes[i]
		if b.MaxWait < b.Target {
			v.errorf("qos.classes."+b.Name+".maxWait", "is %s, should be at least the target, which is %s", b.MaxWait, b.Target)
		}
		if i == 0 {
			continue
		}
		if a := &queue.Classes[i-1]; b.Bound > a.Bound {
			v.errorf("qos.classes."+b.Name+".bound", "is %s, should be at most the %s of %s, which is more urgent: urgent work must find room that less urgent work has left", b.Bound, a.Bound, a.Name)
		}
	}
	if len(v.errors) > before {
		return
	}
	if err := queue.Validate(); err != nil { // what only the queue knows
		v.errorf("qos", "%v", err)
		return
	}
	v.qosWarnings(queue.Classes)
}

// qosClass checks what is given of a class by itself.
func (v *validator) qosClass(at string, c QoSClassConfig) {
	given := func(key string, value, least, most time.Duration) {
		if value != byPlace {
			v.duration(at+key, value, least, most)
		}
	}
	given(".target", c.Target, time.Millisecond, time.Hour)
	given(".maxWait", c.MaxWait, time.Millisecond, 24*time.Hour)
	given(".bound", c.Bound, time.Millisecond, time.Minute)
	if c.Share != byPlaceShare && !(c.Share >= 0 && c.Share <= qos.MaxShares) {
		v.errorf(at+".share", "is %v, should be between 0 and %v, the part of a pool's work that the class always gets", c.Share, qos.MaxShares)
	}
	switch n := v.cfg.QoS.MaxRequests; {
	case c.MaxQueue < 0:
		v.errorf(at+".maxQueue", "is %d, should be at least 1, or 0 for no bound of its own", c.MaxQueue)
	case n >= 1 && c.MaxQueue > n:
		v.errorf(at+".maxQueue", "is %d, should be at most the %d of qos.maxRequests, or 0 for no bound of its own", c.MaxQueue, n)
	}
	v.count(at+".workerPriority", int64(c.WorkerPriority), -1<<31, 1<<31-1)
}

// shares checks that all shares together leave something to the order of the classes.
func (v *validator) shares(classes []qos.Class) {
	total, parts, at := 0.0, []string(nil), "qos.classes"
	for i := range classes {
		c := &classes[i]
		total += c.Share
		parts = append(parts, c.Name+" "+strconv.FormatFloat(c.Share, 'g', 4, 64))
		if given, ok := v.cfg.QoS.Classes[c.Name]; ok && given.Share != byPlaceShare {
			at = "qos.classes." + c.Name + ".share"
		}
	}
	if total > qos.MaxShares+1e-9 {
		v.errorf(at, "all shares together are %.4g (%s), should be at most %v: the rest is what urgent classes have before others", total, strings.Join(parts, ", "), qos.MaxShares)
	}
}

// qosWarnings tells of what is allowed and can't be meant.
func (v *validator) qosWarnings(classes []qos.Class) {
	c := &v.cfg.QoS
	if !c.Enabled {
		if len(c.Classes) > 0 {
			v.warnf("qos.enabled", "is false: of qos.classes only the targets say something, as what goodput is measured by")
		}
		return
	}
	for i := range v.cfg.Models {
		name := v.cfg.Models[i].Name
		serve := 0
		for j := range v.cfg.Pools {
			if p := &v.cfg.Pools[j]; slices.Contains(p.Models, name) || slices.Contains(p.Adapters, name) {
				serve++
			}
		}
		if serve > qos.MaxPools {
			v.warnf(fmt.Sprintf("models[%d].name", i), "%d pools serve %q; a request goes to one of the first %d of those that it may use", serve, name, qos.MaxPools)
		}
	}
	scheduling := slices.ContainsFunc(v.cfg.Pools, func(p PoolConfig) bool { return p.PriorityScheduling })
	prior := v.cfg.Scoring.Prior
	step := prior.Base + time.Duration(float64(prior.PerKilo)*float64(v.cfg.Scoring.BatchTokens)/1000)
	priorities := false
	for i := range classes {
		class := &classes[i]
		at := "qos.classes." + class.Name
		given, ok := c.Classes[class.Name]
		if ok && given.Bound != byPlace && given.Bound < step {
			v.warnf(at+".bound", "%s is less than the %s that one step of an engine takes by scoring.prior and scoring.batchTokens; work is given up to one step in any case", given.Bound, step)
		}
		if i == 0 && class.Share > 0 {
			v.warnf(at+".share", "does nothing: no class is more urgent than %s", class.Name)
		}
		if class.HasPriority && !scheduling {
			v.warnf(at+".workerPriority", "does nothing: no pool has priorityScheduling")
		}
		if class.KeepAlive && v.cfg.Limits.KeepAliveComment == 0 {
			v.warnf(at+".keepAlive", "does nothing while limits.keepAliveComment is 0")
		}
		if i > 0 {
			above := &classes[i-1]
			if class.Target < above.Target {
				v.warnf(at+".target", "%s is less than the %s of %s, which is more urgent; the order of policy.classes decides", class.Target, above.Target, above.Name)
			}
			if class.WorkerPriority < above.WorkerPriority && scheduling {
				v.warnf(at+".workerPriority", "%d is less than the %d of %s, which is more urgent: engines take the lower number first", class.WorkerPriority, above.WorkerPriority, above.Name)
			}
		}
		priorities = priorities || class.HasPriority
	}
	for i := range v.cfg.Pools {
		if v.cfg.Pools[i].PriorityScheduling && !priorities {
			v.warnf(fmt.Sprintf("pools[%d].priorityScheduling", i), "does nothing: no class of qos.classes has a workerPriority")
		}
	}
}
