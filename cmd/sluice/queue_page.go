package main

import (
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/qos"
)

// queuePage is GET /debug/queue. Counts are since the gateway started.
type queuePage struct {
	// Queued says whether requests wait in a queue at all.
	Queued      bool           `json:"queued"`
	Requests    int            `json:"requests"`
	MaxRequests int            `json:"max_requests"`
	Bytes       int64          `json:"bytes"`
	MaxBytes    int64          `json:"max_bytes"`
	LateWakeups int64          `json:"late_wakeups"`
	Classes     []classPage    `json:"classes"`
	Pools       []poolPage     `json:"pools"`
	Tenants     []flowPage     `json:"tenants"`
	Refused     []refusalEntry `json:"refused"`
}

// classPage is a class as it is in force, defaults included, and what came of its requests.
type classPage struct {
	Name           string           `json:"name"`
	Target         millis           `json:"target_ms"`
	MaxWait        millis           `json:"max_wait_ms"`
	Bound          millis           `json:"bound_ms"`
	Share          float64          `json:"share"`
	MaxQueue       int              `json:"max_queue,omitempty"`
	Preemptible    bool             `json:"preemptible"`
	KeepAlive      bool             `json:"keep_alive"`
	WorkerPriority *int64           `json:"worker_priority,omitempty"`
	Waiting        int              `json:"waiting"`
	Oldest         millis           `json:"oldest_ms"`
	Passed         int64            `json:"passed"`
	Granted        int64            `json:"granted"`
	Left           int64            `json:"left"`
	Refused        map[string]int64 `json:"refused,omitempty"`
}

// poolPage is what waits for one pool.
type poolPage struct {
	Name string `json:"name"`
	// Rate is the work that the pool takes, in tokens a second, as measured while requests waited for it.
	Rate  float64    `json:"tokens_per_second"`
	Look  *time.Time `json:"looked_at_again,omitempty"`
	Bands []bandPage `json:"classes"`
}

// bandPage is one class in one pool.
type bandPage struct {
	Class   string `json:"class"`
	Waiting int    `json:"waiting"`
	Work    int64  `json:"work_tokens"`
	// Credit is the work that the class's share has earned and not got yet.
	Credit float64 `json:"credit_tokens"`
	// Share is the part that the class had of the work that was placed while it waited here.
	Share    float64 `json:"share_got"`
	Refusing bool    `json:"refusing"`
}

// flowPage is one tenant that waits for a pool in a class.
type flowPage struct {
	Tenant  string  `json:"tenant"`
	Pool    string  `json:"pool"`
	Class   string  `json:"class"`
	Weight  float64 `json:"weight"`
	Waiting int     `json:"waiting"`
	Work    int64   `json:"work_tokens"`
	// Ahead is by how much weighted work it has had more than a tenant that comes now begins with.
	Ahead float64 `json:"ahead_tokens"`
}

// refusalEntry is one of the latest refusals.
type refusalEntry struct {
	At         time.Time `json:"at"`
	RequestID  string    `json:"request_id"`
	Tenant     string    `json:"tenant"`
	Class      string    `json:"class"`
	Reason     string    `json:"reason"`
	Pools      []string  `json:"pools"`
	Work       int64     `json:"work_tokens"`
	Waited     millis    `json:"waited_ms"`
	Forecast   millis    `json:"forecast_ms"`
	MaxWait    millis    `json:"max_wait_ms"`
	RetryAfter millis    `json:"retry_after_ms"`
}

// debugQueue is GET /debug/queue.
func (a *app) debugQueue() any {
	var s gateway.QueueState
	if !a.gateway.QueueState(&s) {
		return queuePage{Classes: []classPage{}, Pools: []poolPage{}, Tenants: []flowPage{}, Refused: []refusalEntry{}}
	}
	return newQueuePage(&s, time.Now())
}

func newQueuePage(s *gateway.QueueState, now time.Time) queuePage {
	p := queuePage{
		Queued: len(s.Config.Classes) > 0, Requests: s.Waiting, MaxRequests: s.Config.MaxEntries, Bytes: s.Bytes, MaxBytes: s.Config.MaxBytes,
		LateWakeups: s.LateWakeups, Classes: []classPage{}, Pools: []poolPage{}, Tenants: []flowPage{}, Refused: []refusalEntry{},
	}
	classes, pools := make(map[qos.ClassID]string), make(map[qos.PoolID]string)
	for i := range s.Classes {
		c := &s.Classes[i]
		classes[c.ID] = c.Name
		if !c.Gone || c.Waiting > 0 {
			p.Classes = append(p.Classes, newClassPage(c, s.Config.Classes, now))
		}
	}
	for i := range s.Pools {
		pool := &s.Pools[i]
		pools[pool.ID] = pool.Name
		page := poolPage{Name: pool.Name, Rate: pool.Rate, Bands: []bandPage{}}
		if !pool.Look.IsZero() {
			page.Look = &pool.Look
		}
		for j := range s.Bands {
			if b := &s.Bands[j]; b.Pool == pool.ID {
				page.Bands = append(page.Bands, newBandPage(b, classes[b.Class]))
			}
		}
		p.Pools = append(p.Pools, page)
	}
	for i := range s.Flows {
		f := &s.Flows[i]
		p.Tenants = append(p.Tenants, flowPage{f.Tenant, pools[f.Pool], classes[f.Class], f.Weight, f.Waiting, f.Work, f.Ahead})
	}
	for i := range s.Refused {
		r := &s.Refused[i]
		p.Refused = append(p.Refused, refusalEntry{
			At: r.At, RequestID: r.RequestID, Tenant: r.Tenant, Class: r.Class, Reason: r.Reason.String(), Pools: r.Pools, Work: r.Work,
			Waited: inMillis(r.Waited), Forecast: inMillis(r.Forecast), MaxWait: inMillis(r.MaxWait), RetryAfter: inMillis(r.RetryAfter),
		})
	}
	return p
}

// newClassPage shows a class by the configuration in force, which one that is gone is no longer in.
func newClassPage(c *qos.ClassStats, configured []qos.Class, now time.Time) classPage {
	page := classPage{Name: c.Name, Waiting: c.Waiting, Passed: c.Passed, Granted: c.Granted, Left: c.Left}
	if !c.Oldest.IsZero() {
		page.Oldest = inMillis(max(0, now.Sub(c.Oldest)))
	}
	for r, n := range c.Refused {
		if n > 0 {
			if page.Refused == nil {
				page.Refused = make(map[string]int64)
			}
			page.Refused[qos.Reason(r).String()] = n
		}
	}
	for i := range configured {
		if q := &configured[i]; q.Name == c.Name && !c.Gone {
			page.Target, page.MaxWait, page.Bound, page.Share = inMillis(q.Target), inMillis(q.MaxWait), inMillis(q.Bound), q.Share
			page.MaxQueue, page.Preemptible, page.KeepAlive = q.MaxQueue, q.Preemptible, q.KeepAlive
			if q.HasPriority {
				page.WorkerPriority = &q.WorkerPriority
			}
		}
	}
	return page
}

func newBandPage(b *qos.BandStats, class string) bandPage {
	page := bandPage{Class: class, Waiting: b.Waiting, Work: b.Work, Credit: b.Credit, Refusing: b.Refusing}
	if b.Contended > 0 {
		page.Share = float64(b.Got) / float64(b.Contended)
	}
	return page
}
