package replay

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicegate/sluice/policy"
)

// What says what changes.
type What string

// The kinds of changes, the gravest first.
const (
	AllowToDeny   What = "allow to deny"
	DenyToAllow   What = "deny to allow"
	Pools         What = "pools"
	Isolation     What = "cache isolation"
	Class         What = "class"
	MaxTokens     What = "max_tokens"
	Choices       What = "n"
	LimitValue    What = "limit"
	Labels        What = "labels"
	Reason        What = "reason" // denied both times, by another rule or for another reason
	Indeterminate What = "indeterminate"
)

var order = []What{AllowToDeny, DenyToAllow, Pools, Isolation, Class, MaxTokens, Choices, LimitValue, Labels, Reason, Indeterminate}

// Change is one kind of difference, counted over the decisions that have it.
type Change struct {
	// Tenant is empty where the record does not say.
	Tenant string `json:"tenant"`
	// Rule that makes the difference: the one that denies or denied, the limit,
	// or the effects that bear on what has changed, joined by a comma.
	Rule string `json:"rule"`
	What What   `json:"what"`
	// From and To are the values. Of numbers they are those of the example, and
	// the count is of all changes in that direction. For Indeterminate, To says
	// what the record lacks.
	From  string `json:"from"`
	To    string `json:"to"`
	Count int    `json:"count"`
	// Example is the id of the first such decision.
	Example string `json:"example"`

	// direction of a number, which stands for its values in the key.
	direction int
}

// comparison compares two outcomes of one request.
type comparison struct {
	run      *run
	from, to outcome
	found    []Change
}

func (c *comparison) add(what What, rule, from, to string) {
	c.found = append(c.found, Change{What: what, Rule: rule, From: from, To: to})
}

func (c *comparison) compare() {
	if c.from.verdictUnknown || c.to.verdictUnknown {
		c.undecided()
		return
	}
	if c.from.allow != c.to.allow {
		c.verdict()
		return
	}
	if !c.to.allow {
		if !c.from.counters && (c.from.rule != c.to.rule || c.from.reason != c.to.reason) {
			c.add(Reason, c.to.rule, c.from.denial(), c.to.denial())
		}
		return
	}
	if c.from.refusedByCounter != "" && !c.to.asks(c.from.refusedByCounter) {
		c.add(DenyToAllow, c.from.refusedByCounter, "denied by a spent limit", "no such limit")
		return
	}
	c.effective()
}

// undecided says which rule cannot be judged and what it lacks.
func (c *comparison) undecided() {
	from, side := "the baseline", c.from
	if c.to.verdictUnknown {
		from, side = c.from.verdict(), c.to
	}
	for _, u := range side.unknown {
		c.add(Indeterminate, u.rule, from, u.why)
	}
}

// verdict reports a request that is refused on one side alone.
func (c *comparison) verdict() {
	switch {
	case c.run.options.Apart && (c.from.configured || c.to.configured):
		c.add(Indeterminate, cmp.Or(c.to.rule, c.from.rule), c.from.verdict(), c.to.verdict()+", which hangs on the configuration")
	case c.from.allow:
		c.add(AllowToDeny, c.to.rule, c.from.verdict(), c.to.denial())
	case c.from.counters && c.to.asks(c.from.rule):
		// The limit is still asked for: its counter decides, which is not replayed.
	default:
		c.add(DenyToAllow, c.from.rule, c.from.denial(), c.to.verdict())
	}
}

func (o *outcome) verdict() string {
	if o.allow {
		return "allow"
	}
	return o.denial()
}

func (o *outcome) denial() string {
	if o.verdictUnknown {
		return "unknown"
	}
	if o.rule == "" {
		return o.reason
	}
	return o.reason + " by " + o.rule
}

// effective compares what two admissions give the request.
func (c *comparison) effective() {
	if c.run.options.Apart && c.run.baseline == nil {
		return
	}
	from, to := &c.from, &c.to
	if !c.run.options.Apart {
		c.sets(Pools, policy.TouchPools, from.pools, to.pools)
	}
	c.words(Isolation, policy.TouchIsolation, from.isolation, to.isolation)
	c.words(Class, policy.TouchClass, from.class, to.class)
	if from.maxTokens != nil && to.maxTokens != nil {
		c.number(MaxTokens, c.effects(policy.TouchMaxTokens), *from.maxTokens, *to.maxTokens)
	}
	c.number(Choices, c.effects(policy.TouchN), from.n, to.n)
	c.sets(Labels, policy.TouchLabels, from.labels, to.labels)
	c.limits()
}

func (c *comparison) sets(what What, touch policy.Touch, from, to []string) {
	f, t := sortedSet(from), sortedSet(to)
	if !slices.Equal(f, t) {
		c.add(what, c.effects(touch), "["+strings.Join(f, " ")+"]", "["+strings.Join(t, " ")+"]")
	}
}

func sortedSet(l []string) []string {
	l = slices.Clone(l)
	slices.Sort(l)
	return slices.Compact(l)
}

func (c *comparison) words(what What, touch policy.Touch, from, to string) {
	if from != to {
		c.add(what, c.effects(touch), from, to)
	}
}

func (c *comparison) number(what What, rule string, from, to int64) {
	if from != to {
		c.found = append(c.found, Change{
			What: what, Rule: rule, From: strconv.FormatInt(from, 10), To: strconv.FormatInt(to, 10), direction: cmp.Compare(to, from),
		})
	}
}

// limits compares what the limits allow: their sizes, and which there are.
func (c *comparison) limits() {
	names := map[limitName]bool{}
	for _, side := range []map[limitName]int64{c.from.limits, c.to.limits} {
		for name := range side {
			names[name] = true
		}
	}
	byName := func(a, b limitName) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.binding, b.binding))
	}
	for _, name := range slices.SortedFunc(maps.Keys(names), byName) {
		before, had := c.from.limits[name]
		after, has := c.to.limits[name]
		rule := fmt.Sprintf("%s (%s)", name.rule, name.binding)
		switch {
		case !had && c.from.refusedByCounter == "":
			c.add(LimitValue, rule, "none", strconv.FormatInt(after, 10))
		case !had:
		case !has:
			c.add(LimitValue, rule, strconv.FormatInt(before, 10), "none")
		default:
			c.number(LimitValue, rule, before, after)
		}
	}
}

// effects names what makes a difference: the effects that bear on it and fired
// on one side alone or, if there are none, all that bear on it, of which one
// then gives another value than before.
func (c *comparison) effects(touch policy.Touch) string {
	bears := func(rule string) bool {
		touched, known := c.run.touches[rule]
		return !known || slices.Contains(touched, touch)
	}
	var one, all []string
	for _, rule := range sortedSet(slices.Concat(c.from.fired, c.to.fired)) {
		if !bears(rule) {
			continue
		}
		all = append(all, rule)
		if slices.Contains(c.from.fired, rule) != slices.Contains(c.to.fired, rule) {
			one = append(one, rule)
		}
	}
	if len(one) > 0 {
		return strings.Join(one, ",")
	}
	return strings.Join(all, ",")
}

// maxChanges bounds the kinds of changes that are told apart. Further ones are
// counted under the first of the same tenant-less kind.
const maxChanges = 20_000

// tally counts changes of one kind together.
type tally struct {
	byKey map[Change]*Change
}

func newTally() *tally { return &tally{byKey: map[Change]*Change{}} }

func (t *tally) add(c Change) {
	key := Change{Tenant: c.Tenant, Rule: c.Rule, What: c.What, direction: c.direction}
	if c.direction == 0 {
		key.From, key.To = c.From, c.To
	}
	if t.byKey[key] == nil && len(t.byKey) >= maxChanges {
		key = Change{What: c.What}
		c.Tenant, c.Rule, c.From, c.To = "", "", "", "more than this report tells apart"
	}
	if have := t.byKey[key]; have != nil {
		have.Count += c.Count
		return
	}
	t.byKey[key] = &c
}

func (t *tally) sorted() []Change {
	out := make([]Change, 0, len(t.byKey))
	for _, c := range t.byKey {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(
			cmp.Compare(slices.Index(order, a.What), slices.Index(order, b.What)),
			cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.direction, b.direction),
		)
	})
	return out
}
