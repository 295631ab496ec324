package policy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// revision is the digest of what a set decides by: the canonical JSON of all
// policies and bindings ordered by kind and name, the declared claims and the
// evaluator's version. Comments, layout, file names and the order of documents
// do not reach it.
func revision(cfg *Config, headers []header) string {
	slices.SortFunc(headers, func(a, b header) int {
		return cmp.Or(strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name))
	})
	docs := make([]any, len(headers))
	for i, h := range headers {
		docs[i] = jsonValue(h.root.n, h.kind == kindPolicy)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]any{"documents": docs, "claims": cfg.Claims, "evaluator": evaluatorVersion}); err != nil {
		panic("BUG: policy: cannot encode a decoded document: " + err.Error())
	}
	sum := sha256.Sum256(b.Bytes())
	return "sha256:" + hex.EncodeToString(sum[:])
}

// expressionFields are read by their text, quoted or not.
var expressionFields = []string{"expression", "messageExpression", "valueExpression", "when", "limit", "estimate", "charge", "max_tokens", "n"}

// jsonValue converts a decoded document, whose keys are unique, to what
// encoding/json writes with sorted keys.
func jsonValue(n ast.Node, isPolicy bool) any {
	switch v := n.(type) {
	case *ast.MappingNode:
		out := make(map[string]any, len(v.Values))
		for _, e := range v.Values {
			addPair(out, e, isPolicy)
		}
		return out
	case *ast.MappingValueNode:
		out := map[string]any{}
		addPair(out, v, isPolicy)
		return out
	case *ast.SequenceNode:
		out := make([]any, len(v.Values))
		for i, e := range v.Values {
			out[i] = jsonValue(e, isPolicy)
		}
		return out
	case *ast.StringNode:
		return v.Value
	case *ast.LiteralNode:
		return v.Value.Value
	case *ast.BoolNode:
		return v.Value
	case *ast.IntegerNode:
		return v.Value
	case *ast.FloatNode:
		return v.Value
	}
	return nil
}

func addPair(out map[string]any, e *ast.MappingValueNode, isPolicy bool) {
	key := e.Key.GetToken().Value
	s, isScalar := (node{n: e.Value, doc: yamlDoc{file: &yamlFile{}}}).scalarOf()
	switch {
	case isPolicy && isScalar && slices.Contains(expressionFields, key):
		out[key] = s.text
	case isPolicy && key == "key":
		out[key] = keyTexts(e.Value)
	default:
		out[key] = jsonValue(e.Value, isPolicy)
	}
}

// keyTexts reads the key of a limit (a list of expressions) or of an audit
// annotation.
func keyTexts(n ast.Node) any {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return jsonValue(n, true)
	}
	out := make([]any, len(list.Values))
	for i, e := range list.Values {
		if s, ok := (node{n: e, doc: yamlDoc{file: &yamlFile{}}}).scalarOf(); ok {
			out[i] = s.text
		}
	}
	return out
}
