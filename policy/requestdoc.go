package policy

import (
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// RequestDoc is a request written down for an explanation: variables as in the
// `input` of a PolicyTest, an HTTP request, or both, where the variables say
// what the HTTP request does not or other than it does.
type RequestDoc struct {
	// Values by full variable name, as in [TestCase.Input].
	Values map[string]any
	// HTTP is nil where none was given.
	HTTP *HTTPDoc
}

// HTTPDoc is an HTTP request as a client sends it.
type HTTPDoc struct {
	Method, Path string
	Headers      map[string]string
	Body         []byte
	// At is the place of the body, without a text.
	At Error
}

// ReadRequest reads a request document: YAML, or the same as JSON.
//
//	http: { method: POST, path: /v1/chat/completions, headers: { x-app: demo }, body: { model: m, messages: [] } }
//	tenant: { id: acme, tier: gold }
//
// The spaces request, principal, tenant, content and now may stand at the top or
// under input. claims are those that the configuration declares. The error is a
// *LoadError.
func ReadRequest(fsys fs.FS, file string, claims map[string]string) (*RequestDoc, error) {
	p := &problems{}
	docs, _ := readYAML(p, fsys, file)
	if len(docs) != 1 && len(p.list) == 0 {
		p.addAt(file, 0, 0, "", fmt.Sprintf("the file has %d documents, should have one request", len(docs)))
	}
	if len(p.list) > 0 {
		return nil, &LoadError{Errors: p.sorted()}
	}
	root := node{doc: docs[0], n: docs[0].root}
	out := &RequestDoc{Values: map[string]any{}}
	vars := testVariables(p, root, Config{Claims: claims})
	f := root.fields(p, "http", "input", "now", "request", "principal", "tenant", "content")
	if v, ok := f["http"]; ok {
		out.HTTP = decodeHTTP(p, v)
	}
	if v, ok := f["input"]; ok {
		vars.decodeFields(p, out.Values, v.fields(p, inputSpaces...))
	}
	delete(f, "http")
	delete(f, "input")
	vars.decodeFields(p, out.Values, f)
	if len(p.list) > 0 {
		return nil, &LoadError{Errors: p.sorted()}
	}
	return out, nil
}

func decodeHTTP(p *problems, n node) *HTTPDoc {
	out := &HTTPDoc{Method: "POST", Headers: map[string]string{}, At: n.place()}
	f := n.fields(p, "method", "path", "headers", "body")
	if v, ok := f["method"]; ok {
		out.Method = v.str(p)
	}
	if v, ok := n.require(p, f, "path"); ok {
		out.Path = v.str(p)
	}
	if v, ok := f["headers"]; ok {
		out.Headers = v.stringMap(p)
	}
	if v, ok := f["body"]; ok {
		out.At = v.place()
		out.Body = decodeBody(p, v)
	}
	return out
}

// decodeBody reads a body that is written as text, or as YAML that stands for
// JSON.
func decodeBody(p *problems, n node) []byte {
	switch n.n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		return []byte(n.str(p))
	}
	var value any
	if err := yaml.NodeToValue(n.n, &value); err != nil {
		n.errorf(p, "the body does not decode, should be JSON as a text or as YAML")
		return nil
	}
	body, err := json.Marshal(value)
	if err != nil {
		n.errorf(p, "the body cannot be written as JSON: use texts as keys")
		return nil
	}
	return body
}
