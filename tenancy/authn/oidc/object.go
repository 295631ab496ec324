package oidc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"
)

// maxDepth is how deep a token's JSON may be nested.
const maxDepth = 16

var (
	errNotObject = errors.New("it is not one JSON object")
	errNotUTF8   = errors.New("it is not UTF-8")
	errRepeated  = errors.New("a name stands in it twice")
	errDeep      = errors.New("it is nested too deeply")
	errNumber    = errors.New("a number in it has no place in 64 bits")
)

// ParseClaims reads claims that come without a signature of their own, as
// strictly as those of a token. The error holds nothing of them.
func ParseClaims(text []byte) (map[string]any, error) { return parseObject(text) }

// parseObject reads one JSON object, strictly: a name that stands in any object
// twice, also in another spelling of the same letters, is an error, since other
// parsers would take either. Numbers are int64 where they are whole and fit,
// else float64.
func parseObject(text []byte) (map[string]any, error) {
	if !utf8.Valid(text) {
		return nil, errNotUTF8
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	t, err := d.Token()
	if err != nil || t != json.Delim('{') {
		return nil, errNotObject
	}
	out, err := objectRest(d, 1)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errNotObject
	}
	return out, nil
}

// objectRest reads an object behind its opening brace.
func objectRest(d *json.Decoder, depth int) (map[string]any, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	out := make(map[string]any)
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errNotObject
		}
		if _, again := out[name]; again {
			return nil, errRepeated
		}
		if out[name], err = value(d, depth); err != nil {
			return nil, err
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, errNotObject
	}
	return out, nil
}

// listRest reads a list behind its opening bracket.
func listRest(d *json.Decoder, depth int) ([]any, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	out := []any{}
	for d.More() {
		v, err := value(d, depth)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	if _, err := d.Token(); err != nil {
		return nil, errNotObject
	}
	return out, nil
}

func value(d *json.Decoder, depth int) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, errNotObject
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return objectRest(d, depth+1)
		}
		return listRest(d, depth+1)
	case json.Number:
		if n, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
			return n, nil
		}
		f, err := strconv.ParseFloat(t.String(), 64)
		if err != nil {
			return nil, errNumber
		}
		return f, nil
	}
	return t, nil // string, bool or nil
}
