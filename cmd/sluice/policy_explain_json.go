package main

import "github.com/sluicegate/sluice/policy"

// The form of `policy explain --format json`. It grows by fields only.
type (
	explainOutput struct {
		Verdict  string           `json:"verdict"`
		Status   int              `json:"status,omitempty"`
		Reason   policy.Reason    `json:"reason,omitempty"`
		Rule     string           `json:"rule,omitempty"`
		Message  string           `json:"message,omitempty"`
		Revision string           `json:"revision"`
		Units    int64            `json:"units"`
		Bindings []explainBinding `json:"bindings"`
		Steps    []explainStep    `json:"steps"`
	}
	explainBinding struct {
		Policy      string              `json:"policy"`
		Binding     string              `json:"binding"`
		Mode        policy.Mode         `json:"mode"`
		Selected    bool                `json:"selected"`
		Applies     bool                `json:"applies"`
		Why         string              `json:"why"`
		Expressions []explainExpression `json:"expressions"`
	}
	explainExpression struct {
		Kind      policy.RuleKind `json:"kind"`
		Rule      string          `json:"rule"`
		Field     string          `json:"field"`
		File      string          `json:"file"`
		Line      int             `json:"line"`
		Column    int             `json:"column"`
		Text      string          `json:"text"`
		Evaluated bool            `json:"evaluated"`
		Value     string          `json:"value,omitempty"`
		Error     string          `json:"error,omitempty"`
		Units     int64           `json:"units"`
		Estimate  int64           `json:"estimate"`
		Lazy      []string        `json:"lazy,omitempty"`
		Nodes     []explainNode   `json:"nodes,omitempty"`
	}
	explainNode struct {
		Line      int    `json:"line"`
		Column    int    `json:"column"`
		Depth     int    `json:"depth"`
		Text      string `json:"text"`
		Evaluated bool   `json:"evaluated"`
		Value     string `json:"value,omitempty"`
	}
	explainStep struct {
		What    string `json:"what"`
		Rule    string `json:"rule,omitempty"`
		Binding string `json:"binding,omitempty"`
		Before  string `json:"before,omitempty"`
		After   string `json:"after"`
	}
)

func explainDocument(dir string, x *policy.Explanation) *explainOutput {
	d := x.Decision
	out := &explainOutput{
		Verdict: "allow", Status: d.Status, Reason: d.Reason, Rule: d.Rule, Message: d.Message, Revision: d.Revision, Units: d.Cost.Units,
		Bindings: []explainBinding{}, Steps: []explainStep{},
	}
	if !d.Allow {
		out.Verdict = "deny"
	}
	for i := range x.Bindings {
		b := &x.Bindings[i]
		eb := explainBinding{b.Policy, b.Binding, b.Mode, b.Selected, b.Applies, b.Why, []explainExpression{}}
		for j := range b.Expressions {
			eb.Expressions = append(eb.Expressions, explainedExpression(dir, &b.Expressions[j]))
		}
		out.Bindings = append(out.Bindings, eb)
	}
	for _, s := range x.Steps {
		out.Steps = append(out.Steps, explainStep{s.What, s.Rule, s.Binding, s.Before, s.After})
	}
	return out
}

func explainedExpression(dir string, e *policy.ExpressionTrace) explainExpression {
	at := inFolder(dir, e.At)
	out := explainExpression{
		Kind: e.Kind, Rule: e.Rule, Field: e.Field, File: at.File, Line: at.Line, Column: at.Col, Text: e.Text,
		Evaluated: e.Evaluated, Value: e.Value, Error: e.Err, Units: e.Cost, Estimate: e.Estimate, Lazy: e.Lazy,
	}
	for _, n := range e.Nodes {
		out.Nodes = append(out.Nodes, explainNode{n.Line, n.Col, n.Depth, n.Text, n.Evaluated, n.Value})
	}
	return out
}
