package main

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/sluicegate/sluice/policy/yamltext"
)

// yamlDecoder decodes one YAML document into Go values strictly: an unknown key, a repeated key and a
// value of the wrong type are issues, each with its position, and all of them are found in one pass. (The
// library's own decoder stops at the first.) Anchors, aliases, merge keys and tags are refused, so that
// what the file says is what it means.
//
// A key that is absent, or present without a value, leaves the Go value as it was: that is the default.
type yamlDecoder struct {
	file      string
	issues    []Issue
	positions map[string]filePosition // of every value in the file, by path
}

type filePosition struct{ line, column int }

// defaulter is an element of a list or mapping that has defaults of its own, set before its keys are decoded.
type defaulter interface{ setDefaults() }

var (
	durationType = reflect.TypeFor[time.Duration]()
	byteSizeType = reflect.TypeFor[ByteSize]()
)

// decode reads data into the struct that out points to.
func (d *yamlDecoder) decode(data []byte, out any) {
	d.positions = make(map[string]filePosition)
	tokens, fault := yamltext.Tokenize(string(data), yamltext.Small)
	if fault != nil {
		d.issues = append(d.issues, Issue{File: d.file, Line: fault.Line, Column: fault.Column, Text: fault.Text})
		return
	}
	f, err := yamltext.Parse(tokens)
	if err != nil {
		d.syntaxError(err)
		return
	}
	var bodies []ast.Node
	for _, doc := range f.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch {
	case len(bodies) == 0:
		return // an empty file: all defaults
	case len(bodies) > 1:
		d.add(bodies[1], "", "a second document; the configuration is one document")
		return
	}
	d.value(bodies[0], "", reflect.ValueOf(out).Elem())
}

func (d *yamlDecoder) syntaxError(err error) {
	is := Issue{File: d.file, Text: "cannot read this as YAML: " + err.Error()}
	if ye, ok := errors.AsType[yaml.Error](err); ok {
		is.Text = "cannot read this as YAML: " + ye.GetMessage()
		if t := ye.GetToken(); t != nil && t.Position != nil {
			is.Line, is.Column = t.Position.Line, t.Position.Column
		}
	}
	d.issues = append(d.issues, is)
}

// add records an issue at node.
func (d *yamlDecoder) add(node ast.Node, path, format string, args ...any) {
	p := positionOf(node)
	d.issues = append(d.issues, Issue{
		File: d.file, Line: p.line, Column: p.column, Path: path, Text: fmt.Sprintf(format, args...),
	})
}

// positionOf returns where node starts. A block mapping's own token is its first colon, so its first
// key counts instead.
func positionOf(node ast.Node) filePosition {
	switch n := node.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return positionOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return positionOf(n.Key)
	}
	t := node.GetToken()
	if t == nil || t.Position == nil {
		return filePosition{}
	}
	return filePosition{t.Position.Line, t.Position.Column}
}

// value decodes node into v.
func (d *yamlDecoder) value(node ast.Node, path string, v reflect.Value) {
	d.positions[path] = positionOf(node)
	switch node.(type) {
	case *ast.NullNode:
		return
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.add(node, path, "anchors, aliases and tags are not read here; write the value out")
		return
	}
	switch {
	case v.Type() == durationType:
		d.duration(node, path, v)
	case v.Type() == byteSizeType:
		d.byteSize(node, path, v)
	case v.Kind() == reflect.Struct:
		d.structure(node, path, v)
	case v.Kind() == reflect.Map:
		d.stringMap(node, path, v)
	case v.Kind() == reflect.Slice:
		d.list(node, path, v)
	default:
		d.scalar(node, path, v)
	}
}

// mapping returns the entries of node, or false after an issue. Repeated keys are issues.
func (d *yamlDecoder) mapping(node ast.Node, path string) ([]*ast.MappingValueNode, bool) {
	var entries []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		d.add(node, path, "is %s, should be a mapping of keys to values", kindOfNode(node))
		return nil, false
	}
	seen := make(map[string]filePosition, len(entries))
	kept := entries[:0:0]
	for _, e := range entries {
		key, ok := d.key(e, path)
		if !ok {
			continue
		}
		if first, again := seen[key]; again {
			d.add(e.Key, joinPath(path, key), "repeated key; it was first given in line %d, and only one value can count", first.line)
			continue
		}
		seen[key] = positionOf(e.Key)
		kept = append(kept, e)
	}
	return kept, true
}

// key returns the text of an entry's key, or false after an issue.
func (d *yamlDecoder) key(e *ast.MappingValueNode, path string) (string, bool) {
	switch k := e.Key.(type) {
	case *ast.StringNode:
		return k.Value, true
	case *ast.MergeKeyNode:
		d.add(e.Key, path, "merge keys are not read here; write the keys out")
		return "", false
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		return e.Key.GetToken().Value, true
	}
	d.add(e.Key, path, "is %s as a key, should be a plain name", kindOfNode(e.Key))
	return "", false
}

func (d *yamlDecoder) structure(node ast.Node, path string, v reflect.Value) {
	entries, ok := d.mapping(node, path)
	if !ok {
		return
	}
	fields, names := fieldsOf(v)
	for _, e := range entries {
		key, _ := d.key(e, path)
		at := joinPath(path, key)
		field, ok := fields[key]
		if !ok {
			d.add(e.Key, at, "unknown key%s", suggest(key, names))
			continue
		}
		d.value(e.Value, at, field)
	}
}

// fieldsOf returns the fields of a struct by key, and the keys in their order.
func fieldsOf(v reflect.Value) (map[string]reflect.Value, []string) {
	fields := make(map[string]reflect.Value, v.NumField())
	names := make([]string, 0, v.NumField())
	for sf, field := range v.Fields() {
		name := sf.Tag.Get("yaml")
		fields[name] = field
		names = append(names, name)
	}
	return fields, names
}

func (d *yamlDecoder) stringMap(node ast.Node, path string, v reflect.Value) {
	entries, ok := d.mapping(node, path)
	if !ok {
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(entries)))
	for _, e := range entries {
		key, _ := d.key(e, path)
		elem := reflect.New(v.Type().Elem()).Elem()
		if def, ok := reflect.TypeAssert[defaulter](elem.Addr()); ok {
			def.setDefaults()
		}
		d.value(e.Value, joinPath(path, key), elem)
		v.SetMapIndex(reflect.ValueOf(key), elem)
	}
}

func (d *yamlDecoder) list(node ast.Node, path string, v reflect.Value) {
	seq, ok := node.(*ast.SequenceNode)
	if !ok {
		d.add(node, path, "is %s, should be a list", kindOfNode(node))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, item := range seq.Values {
		elem := out.Index(i)
		if def, ok := reflect.TypeAssert[defaulter](elem.Addr()); ok {
			def.setDefaults()
		}
		at := path + "[" + strconv.Itoa(i) + "]"
		if _, null := item.(*ast.NullNode); null {
			d.add(item, at, "is an empty list entry; give it a value or remove its dash")
		}
		d.value(item, at, elem)
	}
	v.Set(out)
}

func (d *yamlDecoder) scalar(node ast.Node, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if text, ok := textOf(node); ok {
			v.SetString(text)
			return
		}
		d.add(node, path, "is %s, should be text%s", kindOfNode(node), quoteHint(node))
	case reflect.Bool:
		if b, ok := node.(*ast.BoolNode); ok {
			v.SetBool(b.Value)
			return
		}
		d.add(node, path, "is %s, should be true or false", kindOfNode(node))
	case reflect.Int, reflect.Int64:
		if n, ok := integerOf(node); ok {
			v.SetInt(n)
			return
		}
		d.add(node, path, "is %s, should be a whole number", kindOfNode(node))
	case reflect.Float64:
		if x, ok := numberOf(node); ok {
			v.SetFloat(x)
			return
		}
		d.add(node, path, "is %s, should be a number", kindOfNode(node))
	default:
		panic("BUG: no decoding of " + v.Type().String() + " at " + path)
	}
}

func (d *yamlDecoder) duration(node ast.Node, path string, v reflect.Value) {
	const should = "should be a duration such as 30s, 250ms or 5m"
	if n, ok := integerOf(node); ok {
		if n != 0 {
			d.add(node, path, "is a number without a unit, %s", should)
		}
		v.SetInt(0)
		return
	}
	text, ok := textOf(node)
	if !ok {
		d.add(node, path, "is %s, %s", kindOfNode(node), should)
		return
	}
	dur, err := time.ParseDuration(text)
	if err != nil {
		d.add(node, path, "%q is not a duration, %s", clip(text), should)
		return
	}
	v.SetInt(int64(dur))
}

func (d *yamlDecoder) byteSize(node ast.Node, path string, v reflect.Value) {
	const should = "should be a number of bytes, or a size such as 64KiB, 32MiB or 1GiB"
	if n, ok := integerOf(node); ok {
		if n < 0 {
			d.add(node, path, "is negative, %s", should)
		}
		v.SetInt(n)
		return
	}
	text, ok := textOf(node)
	if !ok {
		d.add(node, path, "is %s, %s", kindOfNode(node), should)
		return
	}
	size, err := ParseByteSize(text)
	if err != nil {
		d.add(node, path, "%q is not a size, %s", clip(text), should)
		return
	}
	v.SetInt(int64(size))
}

// textOf returns the value of a text node.
func textOf(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	}
	return "", false
}

func integerOf(node ast.Node) (int64, bool) {
	n, ok := node.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch x := n.Value.(type) {
	case int64:
		return x, true
	case uint64:
		return int64(min(x, math.MaxInt64)), x <= math.MaxInt64
	}
	return 0, false
}

func numberOf(node ast.Node) (float64, bool) {
	if n, ok := integerOf(node); ok {
		return float64(n), true
	}
	if f, ok := node.(*ast.FloatNode); ok {
		return f.Value, true
	}
	return 0, false
}

// kindOfNode names what a node is, for "is …, should be …".
func kindOfNode(node ast.Node) string {
	switch n := node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode:
		if _, ok := integerOf(n); !ok {
			return "a number beyond 64 bits"
		}
		return "a number"
	case *ast.FloatNode:
		return "a fractional number"
	case *ast.InfinityNode:
		return "infinity"
	case *ast.NanNode:
		return "no number"
	case *ast.BoolNode:
		return "true or false"
	case *ast.NullNode:
		return "empty"
	}
	return "YAML of a kind that is not read here"
}

// quoteHint shows how to make text of a scalar that YAML reads as something else.
func quoteHint(node ast.Node) string {
	if _, ok := node.(ast.ScalarNode); !ok {
		return ""
	}
	return fmt.Sprintf("; write %q in quotes", clip(node.GetToken().Value))
}

// clip keeps a quoted value from filling a message.
func clip(text string) string {
	const most = 64
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// suggest returns "; did you mean …?" for the nearest of names, or the list of names where none is near.
func suggest(key string, names []string) string {
	best, bestDistance := "", len(key)/2+1
	for _, name := range names {
		if n := editDistance(strings.ToLower(key), strings.ToLower(name)); n < bestDistance {
			best, bestDistance = name, n
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	if len(names) == 0 {
		return ""
	}
	return "; known here: " + strings.Join(slices.Sorted(slices.Values(names)), ", ")
}

// editDistance is the Levenshtein distance in bytes, bounded by what a key can sensibly be long.
func editDistance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
