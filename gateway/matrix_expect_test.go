package gateway

import (
	"slices"

	"github.com/sluicegate/sluice/tenancy"
)

// The phases of an attempt, and what can go wrong in one.
var (
	matrixPhases = []string{"connect", "tls", "write", "head", "first-byte", "first-event", "mid", "after-mark", "unary"}
	matrixFaults = []string{
		"refuse", "blackhole", "fin", "rst", "stall", "garbage", "framing", "type", "coding", "usage", "error",
		"client-fin", "client-rst", "client-stall", "shutdown", "revoke",
	}
)

// impossible are the cells that can't be played, with the reason. Nil stands for all.
var impossible = []struct {
	phases, faults []string
	stream, unary  bool // of which of the two it is
	reason         string
}{
	{[]string{"first-event", "mid", "after-mark"}, nil, false, true, "an answer that is no stream has no events"},
	{[]string{"unary"}, nil, true, false, "a stream has no body of another kind"},
	{[]string{"connect"}, []string{"fin", "rst", "stall", "garbage"}, true, true, "nobody has accepted who could do it"},
	{[]string{"tls", "write", "head", "first-byte", "first-event", "mid", "after-mark", "unary"}, []string{"blackhole"}, true, true, "the connection stands"},
	{[]string{"write", "head", "first-byte", "first-event", "mid", "after-mark", "unary"}, []string{"refuse"}, true, true, "the connection was not refused"},
	{[]string{"connect", "tls"}, []string{"framing", "type", "coding", "usage", "error"}, true, true, "HTTP has not begun"},
	{[]string{"write"}, []string{"framing", "coding"}, true, true, "an early answer is read like one at the head"},
	{[]string{"write", "head", "first-byte", "first-event", "after-mark"}, []string{"usage"}, true, true, "usage stands elsewhere"},
	{[]string{"first-byte", "first-event", "mid", "after-mark", "unary"}, []string{"type", "coding"}, true, true, "the header has told"},
	{[]string{"first-byte"}, []string{"garbage", "error"}, true, true, "that is within the body"},
	{[]string{"unary"}, []string{"error"}, true, true, "an error has a status of its own"},
	{[]string{"connect", "tls", "write", "head", "first-byte", "first-event", "after-mark"}, []string{"client-stall"}, true, true, "the client has nothing to read yet, or no more"},
}

// whyImpossible is the reason why a cell can't be played, or empty.
func whyImpossible(phase, fault string, d *matrixDialect, stream bool) string {
	if stream && !d.stream {
		return "the route does not stream"
	}
	for _, x := range impossible {
		if (stream && x.stream || !stream && x.unary) && slices.Contains(x.phases, phase) && (x.faults == nil || slices.Contains(x.faults, fault)) {
			return x.reason
		}
	}
	return ""
}

// What a request is charged.
const (
	chargeNone   = iota // nothing: no worker has begun to answer, or none was reached
	chargePrompt        // an estimate of the prompt
	chargePart          // that and what was passed on
	chargeAll           // what the worker counted
	chargeGuess         // an estimate of all
)

// expected is what must become of a cell.
type expected struct {
	again   bool   // another worker answers it
	status  int    // what the client sees; 0: it has gone
	code    string // of the error; empty for success
	event   bool   // the error comes as the last event
	outcome tenancy.Outcome
	blame   string // what is held against the first worker; empty for nothing
	charge  int
	kept    bool // the connection to the first worker serves on
}

var (
	servedElsewhere = func(blame string) expected {
		return expected{again: true, status: 200, outcome: tenancy.OutcomeCompleted, blame: blame, charge: chargeAll}
	}
	refusedWith = func(status int, code, blame string, charge int) expected {
		return expected{status: status, code: code, outcome: tenancy.OutcomeUpstreamError, blame: blame, charge: charge}
	}
	endsWith = func(code, blame string) expected {
		return expected{status: 200, code: code, event: true, outcome: tenancy.OutcomeUpstreamError, blame: blame, charge: chargePart}
	}
	leaves = func(charge int) expected {
		return expected{outcome: tenancy.OutcomeClientAborted, charge: charge}
	}
	completes = func(charge int, kept bool) expected {
		return expected{status: 200, outcome: tenancy.OutcomeCompleted, charge: charge, kept: kept}
	}
	cut = func(status int, code string, charge int) expected {
		return expected{status: status, code: code, outcome: tenancy.OutcomeRejected, charge: charge}
	}
	keeping = func(e expected) expected {
		e.kept = true
		return e
	}
)

// matrixExpected is the contract's word on every cell, by phase and fault.
var matrixExpected = map[string]map[string]expected{
	"connect": {
		"refuse": servedElsewhere("transport"), "blackhole": servedElsewhere("transport"),
		"client-fin": leaves(chargeNone), "client-rst": leaves(chargeNone),
		"shutdown": cut(503, "unavailable", chargeNone), "revoke": cut(401, "invalid_api_key", chargeNone),
	},
	"tls": {
		"refuse": servedElsewhere("transport"), "fin": servedElsewhere("transport"), "rst": servedElsewhere("transport"),
		"stall": servedElsewhere("transport"), "garbage": servedElsewhere("transport"),
		"client-fin": leaves(chargeNone), "client-rst": leaves(chargeNone),
		"shutdown": cut(503, "unavailable", chargeNone), "revoke": cut(401, "invalid_api_key", chargeNone),
	},
	"write": {
		"fin": servedElsewhere("answer"), "rst": servedElsewhere("answer"), "stall": servedElsewhere("answer"),
		"garbage": servedElsewhere("transport"), "type": servedElsewhere("answer"),
		"error":      refusedWith(502, "upstream_error", "answer", chargeNone),
		"client-fin": leaves(chargePrompt), "client-rst": leaves(chargePrompt),
		"shutdown": cut(503, "unavailable", chargePrompt), "revoke": cut(401, "invalid_api_key", chargePrompt),
	},
	"head": {
		"fin": servedElsewhere("transport"), "rst": servedElsewhere("transport"), "garbage": servedElsewhere("transport"),
		"stall":   refusedWith(504, "upstream_timeout", "timeout", chargeNone),
		"framing": refusedWith(502, "upstream_error", "answer", chargeNone),
		"type":    refusedWith(502, "upstream_error", "answer", chargeNone),
		"coding":  refusedWith(502, "upstream_error", "answer", chargeNone),
		"error":   keeping(refusedWith(502, "upstream_error", "answer", chargeNone)),
		// A worker that was left or cut has read the prompt by then.
		"client-fin": leaves(chargePrompt), "client-rst": leaves(chargePrompt),
		"shutdown": cut(503, "unavailable", chargePrompt), "revoke": cut(401, "invalid_api_key", chargePrompt),
	},
	"first-byte": {
		"fin": servedElsewhere("transport"), "rst": servedElsewhere("transport"), "framing": servedElsewhere("transport"),
		"stall":      refusedWith(504, "upstream_timeout", "timeout", chargeNone),
		"client-fin": leaves(chargePrompt), "client-rst": leaves(chargePrompt),
		"shutdown": cut(503, "unavailable", chargePrompt), "revoke": cut(401, "invalid_api_key", chargePrompt),
	},
	"first-event": {
		"fin": refusedWith(502, "upstream_error", "transport", chargePrompt), "rst": refusedWith(502, "upstream_error", "transport", chargePrompt),
		"framing":    refusedWith(502, "upstream_error", "transport", chargePrompt),
		"stall":      refusedWith(502, "upstream_error", "timeout", chargePrompt),
		"garbage":    completes(chargeAll, true),
		"error":      endsWith("upstream_error", "answer"),
		"client-fin": leaves(chargePrompt), "client-rst": leaves(chargePrompt),
		"shutdown": cut(503, "unavailable", chargePrompt), "revoke": cut(401, "invalid_api_key", chargePrompt),
	},
	"mid": {
		"fin": endsWith("upstream_error", "transport"), "rst": endsWith("upstream_error", "transport"), "framing": endsWith("upstream_error", "transport"),
		"stall":      endsWith("upstream_timeout", "timeout"),
		"garbage":    completes(chargeAll, true),
		"usage":      completes(chargeGuess, true),
		"error":      endsWith("upstream_error", "answer"),
		"client-fin": leaves(chargePart), "client-rst": leaves(chargePart), "client-stall": leaves(chargePart),
		"shutdown": endsWith("unavailable", ""),
		"revoke":   {status: 200, code: "invalid_api_key", event: true, outcome: tenancy.OutcomeRejected, charge: chargePart},
	},
	"after-mark": {
		"fin": completes(chargeAll, false), "rst": completes(chargeAll, false), "stall": completes(chargeAll, false), "framing": completes(chargeAll, false),
		"garbage": completes(chargeAll, true), "error": completes(chargeAll, true),
		"client-fin": {outcome: tenancy.OutcomeCompleted, charge: chargeAll}, "client-rst": {outcome: tenancy.OutcomeCompleted, charge: chargeAll},
		"shutdown": completes(chargeAll, false), "revoke": completes(chargeAll, false),
	},
	"unary": {
		"fin": refusedWith(502, "upstream_error", "transport", chargePrompt), "rst": refusedWith(502, "upstream_error", "transport", chargePrompt),
		"framing":    refusedWith(502, "upstream_error", "transport", chargePrompt),
		"stall":      refusedWith(502, "upstream_error", "timeout", chargePrompt),
		"garbage":    keeping(refusedWith(502, "upstream_error", "answer", chargePrompt)),
		"usage":      completes(chargeGuess, true),
		"client-fin": leaves(chargePrompt), "client-rst": leaves(chargePrompt),
		// The worker has done its part, and the row is written, before the client reads.
		"client-stall": {outcome: tenancy.OutcomeCompleted, charge: chargeAll, kept: true},
		"shutdown":     cut(503, "unavailable", chargePrompt), "revoke": cut(401, "invalid_api_key", chargePrompt),
	},
}

// expected is what must become of the cell. What is no JSON is passed on as it is, but
// there is no translation of it.
func (c matrixCell) expected() expected {
	if c.dialect.translated && c.fault == "garbage" {
		switch c.phase {
		case "first-event":
			return refusedWith(502, "upstream_error", "answer", chargePrompt)
		case "mid":
			return endsWith("upstream_error", "answer")
		}
	}
	return matrixExpected[c.phase][c.fault]
}
