package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
)

// EnvInfo describes the expression environment of sluice/v1alpha1: what an
// editor, a reviewer or another implementation has to know.
type EnvInfo struct {
	// Format of documents, and the module and version of the evaluator.
	Format, Evaluator string
	// Libraries beside CEL's standard library, with their pinned versions.
	Libraries []LibraryInfo
	// Options that change what expressions mean.
	Options []string
	// Variables in the order of their names, declared claims included. Those of a
	// policy's own are not: params.* and variables.* depend on the document.
	Variables []VariableInfo
	// Functions and macros by name.
	Functions []FunctionInfo
	Macros    []string
	// Limits of loads and evaluations.
	Limits []LimitInfo
}

// LibraryInfo is one library of the environment.
type LibraryInfo struct {
	Name    string
	Version int
}

// FunctionInfo is a function and its overloads, such as
// "string.startsWith(string) -> bool".
type FunctionInfo struct {
	Name      string
	Overloads []string
}

// LimitInfo is one bound and what it holds for.
type LimitInfo struct {
	Name  string
	Value int64
	Unit  string
}

// Environment describes the environment with the declared claims.
func Environment(claims map[string]string) (*EnvInfo, error) {
	vars, err := Variables(claims)
	if err != nil {
		return nil, err
	}
	env, err := baseEnv()
	if err != nil {
		return nil, err
	}
	out := &EnvInfo{
		Format: apiVersion, Evaluator: evaluatorVersion, Variables: vars,
		Libraries: []LibraryInfo{
			{"lists", versionLists}, {"math", versionMath}, {"network", versionNetwork}, {"optional", versionOptional},
			{"sets", versionSets}, {"strings", versionStrings}, {"two-variable comprehensions", versionTwoVar},
		},
		Options: []string{"cross-type numeric comparisons", "default time zone UTC"},
		Limits:  environmentLimits(),
	}
	for _, name := range slices.Sorted(maps.Keys(env.Functions())) {
		if strings.Contains(name, "@") && name != "@in" {
			continue // the library's own, which no text can call
		}
		f := FunctionInfo{Name: name}
		for _, o := range env.Functions()[name].OverloadDecls() {
			f.Overloads = append(f.Overloads, signature(name, o.ArgTypes(), o.ResultType(), o.IsMemberFunction()))
		}
		slices.Sort(f.Overloads)
		out.Functions = append(out.Functions, f)
	}
	for _, m := range env.Macros() {
		out.Macros = append(out.Macros, m.Function())
	}
	slices.Sort(out.Macros)
	out.Macros = slices.Compact(out.Macros)
	return out, nil
}

func signature(name string, args []*cel.Type, result *cel.Type, member bool) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a.String()
	}
	target := ""
	if member {
		target, words = words[0]+".", words[1:]
	}
	return fmt.Sprintf("%s%s(%s) -> %s", target, name, strings.Join(words, ", "), result)
}

func environmentLimits() []LimitInfo {
	return []LimitInfo{
		{"expression size", maxExprSize, "code points"},
		{"expression nesting", maxExprNesting, ""},
		{"expression nodes", maxExprNodes, ""},
		{"comprehension nesting", maxLoopNesting, ""},
		{"pattern of matches", maxRegexProgram, "instructions"},
		{"lists.range", maxRange, "elements"},
		{"estimated cost of an expression", exprCostLimit, "units"},
		{"cost of an expression", exprCostLimit, "units"},
		{"cost of a request, enforced", requestCostLimit, "units"},
		{"cost of a request, Warn and Audit", requestCostLimit, "units"},
		{"time of an expression", exprTimeLimit.Milliseconds(), "ms"},
		{"time of a request", requestTimeLimit.Milliseconds(), "ms"},
		{"size of a variables.* value", maxVariable, "elements or characters"},
		{"file", maxFileSize, "bytes"},
		{"policies", maxPolicies, ""},
		{"bindings", maxBindings, ""},
		{"matchConditions, variables, validations, effects of a policy", maxRules, "each"},
		{"limits of a policy", maxLimits, ""},
		{"auditAnnotations of a policy", maxAnnotates, ""},
		{"parts of a limit's key", maxKeyParts, ""},
		{"key of a limit", maxKeyBytes, "bytes"},
		{"message", maxMessage, "bytes"},
		{"annotation", maxAnnotation, "bytes"},
	}
}
