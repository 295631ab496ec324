package main

import (
	"strings"
	"sync"

	"github.com/sluicegate/sluice/policy"
)

// otherRule labels what is counted of rules that are no longer in force, and of errors in annotations, which
// have no name among the rules.
const otherRule = "other"

// ruleNames are the names of the policies and rules in force: the only ones that may label a series. A name
// that leaves takes its series along, so that a policy that is edited again and again does not add up to
// more than `check` foretells.
type ruleNames struct {
	mu       sync.RWMutex // protects what follows, and keeps a name's series from coming back after it left
	policies map[string]bool
	rules    map[string]bool // policy/name
}

// set makes the names of a set those in force, and calls gone for each policy or rule that is none of them
// any more; rule is empty for a policy as a whole.
func (n *ruleNames) set(fresh *policy.Set, gone func(policy, rule string)) {
	policies, rules := make(map[string]bool), make(map[string]bool)
	for _, r := range fresh.Rules() {
		name, _, _ := strings.Cut(r.Rule, "/")
		policies[name], rules[r.Rule] = true, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range n.policies {
		if !policies[name] {
			gone(name, "")
		}
	}
	for ref := range n.rules {
		if name, rule, _ := strings.Cut(ref, "/"); !rules[ref] {
			gone(name, rule)
		}
	}
	n.policies, n.rules = policies, rules
}

// with calls count with the labels for a rule, which is empty for none.
func (n *ruleNames) with(ref string, count func(policy, rule string)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	name, rule, _ := strings.Cut(ref, "/")
	switch {
	case ref == "":
	case !n.policies[name]:
		name, rule = otherRule, otherRule
	case !n.rules[ref]:
		rule = otherRule
	}
	count(name, rule)
}

// limit calls count with the label for a limit.
func (n *ruleNames) limit(ref string, count func(limit string)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if !n.rules[ref] {
		ref = otherRule
	}
	count(ref)
}
