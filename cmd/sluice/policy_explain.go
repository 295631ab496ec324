package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/policy"
)

// explainFlags are what `policy explain` was asked for.
type explainFlags struct {
	request, id, config, format string
}

func newPolicyExplainCommand(now func() time.Time) *cobra.Command {
	var f explainFlags
	cmd := &cobra.Command{
		Use:   "explain --request FILE [-c FILE] POLICY-DIR",
		Short: "Show how one request is decided, down to every sub-expression",
		Long: "Decide one request as a gateway would and print, for each binding, why it applies or not, every\n" +
			"expression with the values of its parts, its cost and the lazy work that it caused, and then how the\n" +
			"outcome was combined, step by step.\n\n" +
			"The request is a YAML or JSON file with the variables of a PolicyTest's `input`, an `http:` request (path,\n" +
			"method, headers, body), or both; or a decision log, of which --id chooses a decision. With a configuration\n" +
			"the tenant's or key's particulars come from its tenants file where the request names no more than the id.\n\n" +
			"The output holds values of the request. The exit code is 3 when the request is denied.",
		Example: "  sluice policy explain -c sluice.yaml --request request.yaml policies\n" +
			"  sluice policy explain -c sluice.yaml --request decisions.jsonl --id 0197c2d4-7a10-7cc3-9a53-1f0a9b6f2e11 policies",
		Args: cobra.ExactArgs(1),
		RunE: command(func(cmd *cobra.Command, args []string) error {
			if f.request == "" {
				return &usageError{"--request is missing: name a file with the request"}
			}
			if f.format != "text" && f.format != "json" {
				return &usageError{fmt.Sprintf("--format %q is not known, should be text or json", clip(f.format))}
			}
			loader, err := newPolicyLoader(f.config, now())
			if err != nil {
				return err
			}
			loader.keep = true
			set, err := loader.load(args[0])
			if err != nil {
				return err
			}
			in, err := loader.request(cmd.Context(), f.request, f.id, set)
			if err != nil {
				return err
			}
			x, err := set.Explain(cmd.Context(), in)
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), args[0], x)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.request, "request", "", "file with the request, or a decision log")
	flags.StringVar(&f.id, "id", "", "the decision of the log to explain")
	flags.StringVarP(&f.config, "config", "c", "", "configuration file of the gateway")
	flags.StringVar(&f.format, "format", "text", "text or json")
	return cmd
}

func (f *explainFlags) print(out io.Writer, dir string, x *policy.Explanation) error {
	var err error
	if f.format == "json" {
		err = writeJSON(out, explainDocument(dir, x))
	} else {
		w := &explainWriter{out: out, dir: dir}
		w.write(f.config == "", x)
		err = w.err
	}
	if err != nil {
		return fmt.Errorf("cannot write the explanation: %w", err)
	}
	if !x.Decision.Allow {
		return errFound
	}
	return nil
}

// explainWriter writes an explanation for people and keeps the first error.
type explainWriter struct {
	out io.Writer
	dir string
	err error
}

func (w *explainWriter) print(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, args...)
	}
}

func (w *explainWriter) write(apart bool, x *policy.Explanation) {
	w.print("%s\n", verdictText(x.Decision))
	for _, e := range slices.Concat(x.Decision.Errors, x.Rehearsed.Errors) {
		if e.ErrorKind == policy.ErrorAbsent {
			w.print("not known: %s, which %s needs\n", e.Detail, e.Rule)
		}
	}
	cost := x.Decision.Cost
	w.print("revision %s\n%d units in %s, %d units in rehearsals\n", x.Decision.Revision, cost.Units, count(cost.Expressions, "expression"), x.Rehearsed.Cost.ShadowUnits+cost.ShadowUnits)
	if apart {
		w.print("no configuration: pools are not judged, defaults are those of a gateway without one\n")
	}
	for i := range x.Bindings {
		w.binding(&x.Bindings[i])
	}
	w.print("\ncombination\n")
	for _, s := range x.Steps {
		w.print("  %s\n", stepText(s))
	}
}

func verdictText(d *policy.Decision) string {
	if d.Allow {
		return "allow"
	}
	text := fmt.Sprintf("deny %d %s", d.Status, d.Reason)
	if d.Rule != "" {
		text += " by " + d.Rule
	}
	return text + ": " + d.Message
}

func stepText(s policy.Step) string {
	text := s.What + ": "
	switch {
	case s.Before == "":
		text += s.After
	case s.Before == s.After:
		text += s.After + " stays"
	default:
		text += s.Before + " -> " + s.After
	}
	if s.Rule == "" {
		return text
	}
	if s.Binding == "" {
		return text + " by " + s.Rule
	}
	return fmt.Sprintf("%s by %s (%s)", text, s.Rule, s.Binding)
}

func (w *explainWriter) binding(b *policy.BindingTrace) {
	word := "does not apply"
	if b.Applies {
		word = "applies"
	}
	w.print("\npolicy %s, binding %s (%s) %s: %s\n", b.Policy, b.Binding, b.Mode, word, b.Why)
	for i := range b.Expressions {
		if e := &b.Expressions[i]; b.Applies || e.Evaluated {
			w.expression(e)
		}
	}
}

func (w *explainWriter) expression(e *policy.ExpressionTrace) {
	name := string(e.Kind) + " " + e.Rule
	if e.Field != "expression" && e.Field != "valueExpression" {
		name += " " + e.Field
	}
	at := inFolder(w.dir, e.At)
	place := fmt.Sprintf("%s:%d:%d", at.File, at.Line, at.Col)
	if !e.Evaluated {
		w.print("  %s: not evaluated (%s)\n", name, place)
		return
	}
	value := e.Value
	if e.Err != "" {
		value = "error: " + e.Err
	}
	work := fmt.Sprintf("%d of at most %s", e.Cost, count(int(e.Estimate), "unit"))
	if len(e.Lazy) > 0 {
		work += ", caused " + strings.Join(e.Lazy, " and ")
	}
	w.print("  %s: %s (%s, %s)\n", name, value, place, work)
	for _, n := range e.Nodes {
		w.print("    %5s  %s%s = %s\n", fmt.Sprintf("%d:%d", n.Line, n.Col), strings.Repeat("  ", n.Depth), n.Text, nodeText(n))
	}
	if len(e.Nodes) == 0 && e.Text != e.Value { // a literal explains itself
		w.print("           %s\n", e.Text)
	}
}

func nodeText(n policy.NodeValue) string {
	if !n.Evaluated {
		return "not evaluated"
	}
	return n.Value
}
