package qos

import "time"

// Stats is what a Queue holds and has done, as of [Queue.Stats]. Counts are since the
// queue was made.
type Stats struct {
	// Waiting counts entries, Bytes what they hold, Flows the tenants known, once
	// for each class and pool.
	Waiting int
	Bytes   int64
	Flows   int
	// Pools and Classes are in the order of their ids. Those that are no longer
	// configured stay.
	Pools   []PoolStats
	Classes []ClassStats
	// Bands are the classes of each pool, by pool and then class.
	Bands []BandStats
}

// PoolStats is of one pool.
type PoolStats struct {
	ID   PoolID
	Name string
	// Rate is the work that the pool takes, in tokens a second, as measured while
	// requests waited for it; 0 if that is not known, or was too long ago.
	Rate float64
	// Look is when it is looked at again although nothing happens; zero: not.
	Look time.Time
}

// ClassStats is of one class.
type ClassStats struct {
	ID   ClassID
	Name string
	// Gone says that it is no longer configured.
	Gone    bool
	Waiting int
	// Oldest is when the entry came that waits longest; zero: none waits.
	Oldest time.Time
	// Arrived counts Admits. It is Granted (each entry once, however often it was
	// tried again, and whatever became of it then), Left, the sum of Refused, and
	// those of Waiting that were never granted.
	Arrived, Granted, Left int64
	Refused                [NumReasons]int64
	// Passed counts those that went past the queue.
	Passed int64
}

// BandStats is of one class in one pool. An entry counts in each of its pools.
type BandStats struct {
	Pool    PoolID
	Class   ClassID
	Waiting int
	// Work is what waits, in tokens.
	Work int64
	// Credit is the work that the class's share has earned here and not yet got.
	Credit float64
	// Placed is the work that went to the pool. Contended is the work of all
	// classes that went there while this class waited there, and Got this class's
	// part of it: Got over Contended is the share that it really had.
	Placed, Contended, Got int64
	// Refusing says that an arrival was refused by forecast in the last 10 s, and that
	// the pool has requests that wait: where it has none nobody is.
	Refusing bool
}

// FlowStats is of one tenant in one class and pool.
type FlowStats struct {
	Pool    PoolID
	Class   ClassID
	Tenant  string
	Weight  float64
	Waiting int
	// Work is what waits, in tokens.
	Work int64
	// Ahead is by how many tokens of work, divided by its weight, it has had more
	// than a tenant that comes now begins with.
	Ahead float64
}
