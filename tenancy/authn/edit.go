package authn

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/sluicegate/sluice/tenancy/strictyaml"
)

// ErrNoKey says that there is no key of an id.
var ErrNoKey = errors.New("there is no such key")

// editFile replaces a tenants file by what edit makes of its text, atomically and
// with the permissions it has. Concurrent calls, of other processes too, take
// turns. On an error the file is unchanged.
func editFile(file string, edit func(text []byte) ([]byte, error)) error {
	// Behind a symbolic link lies the file to replace.
	target, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	unlock, err := lockFolder(filepath.Dir(target))
	if err != nil {
		return err
	}
	defer unlock()
	text, err := readFile(target)
	if err != nil {
		return err
	}
	edited, err := edit(text)
	if err != nil || bytes.Equal(edited, text) {
		return err
	}
	return replaceFile(target, edited)
}

// RevokeKey disables a key in a tenants file, keeping every other byte of it, and
// returns what the file says of the key then. It is as careful as AppendKey.
func RevokeKey(file, id string) (k KeyInfo, err error) {
	err = editFile(file, func(text []byte) (edited []byte, err error) {
		edited, k, err = revokeKey(file, text, id)
		return edited, err
	})
	if err != nil {
		return KeyInfo{}, fmt.Errorf("cannot revoke key %s: %w", id, err)
	}
	return k, nil
}

// revokeKey returns the text with the key disabled.
func revokeKey(name string, text []byte, id string) ([]byte, KeyInfo, error) {
	before, k, err := keyIn(name, text, id)
	if err != nil || k.Disabled {
		return text, k, err
	}
	edited, err := setField(text, id, "disabled", "true")
	if err != nil {
		return nil, k, fmt.Errorf("%s: %w", name, err)
	}
	k.Disabled = true
	return edited, k, changesOnly(name, edited, before, k)
}

// RotateKey ends a key of a tenants file at an instant, unless it ends before, and
// adds the one that replaces it: next is given what the file has of the old key. It
// keeps every other byte of the file and is as careful as AppendKey.
func RotateKey(file, id string, end time.Time, next func(old *KeyInfo) (*Record, error)) (old KeyInfo, err error) {
	err = editFile(file, func(text []byte) (edited []byte, err error) {
		edited, old, err = rotateKey(file, text, id, end, next)
		return edited, err
	})
	if err != nil {
		return KeyInfo{}, fmt.Errorf("cannot rotate key %s: %w", id, err)
	}
	return old, nil
}

func rotateKey(name string, text []byte, id string, end time.Time, next func(*KeyInfo) (*Record, error)) ([]byte, KeyInfo, error) {
	before, k, err := keyIn(name, text, id)
	if err != nil {
		return nil, k, err
	}
	rec, err := next(&k)
	if err != nil {
		return nil, k, err
	}
	edited := text
	if k.Expires.IsZero() || end.Before(k.Expires) {
		k.Expires = end.UTC().Round(0)
		if edited, err = setField(text, id, "expires", string(yamlValue(k.Expires.Format(time.RFC3339Nano)))); err != nil {
			return nil, k, fmt.Errorf("%s: %w", name, err)
		}
		if err := changesOnly(name, edited, before, k); err != nil {
			return nil, k, err
		}
	}
	edited, err = appendKey(name, edited, k.Tenant, rec)
	return edited, k, err
}

// keyIn loads a text and finds a key in it.
func keyIn(name string, text []byte, id string) (*Directory, KeyInfo, error) {
	d, err := Load(name, text)
	if err != nil {
		return nil, KeyInfo{}, err
	}
	for _, k := range d.infos {
		if k.ID == id {
			return d, k, nil
		}
	}
	return nil, KeyInfo{}, fmt.Errorf("%w in %s", ErrNoKey, name)
}

// changesOnly returns an error unless a text says what before did, but for the
// one key.
func changesOnly(name string, text []byte, before *Directory, k KeyInfo) error {
	after, err := Load(name, text)
	if err != nil || !reflect.DeepEqual(before.tenants, after.tenants) || len(after.infos) != len(before.infos) {
		return fmt.Errorf("%s: %w", name, errByHand)
	}
	for i, was := range before.infos {
		if was.ID == k.ID {
			was = k
		}
		if !reflect.DeepEqual(was, after.infos[i]) {
			return fmt.Errorf("%s: %w", name, errByHand)
		}
	}
	return nil
}

// setField gives a field of a key, in a text that loads, another value: in the
// place of the one it has, or as a further line.
func setField(text []byte, id, field, value string) ([]byte, error) {
	node := findKey(text, id)
	m, ok := node.AST().(*ast.MappingNode)
	if !ok {
		return nil, errByHand
	}
	lines := splitLines(text)
	r := newReader("")
	pairs, _ := r.Pairs(node, "a key")
	for _, p := range pairs {
		if p.Key == field {
			return replaceValue(lines, p.Value, value)
		}
	}
	if m.IsFlowStyle {
		return insertInFlow(lines, m, field+": "+value)
	}
	// Column counts from 1.
	indent := node.Column() - 1
	at := blockEnd(lines, node.Line(), indent, false)
	line := strings.Repeat(" ", indent) + field + ": " + value + eolOf(lines)
	out := bytes.Join(lines[:at], nil)
	if !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, eolOf(lines)...)
	}
	return append(append(out, line...), bytes.Join(lines[at:], nil)...), nil
}

// findKey returns the mapping of a key in a text that loads.
func findKey(text []byte, id string) strictyaml.Node {
	r := newReader("")
	body, _ := r.Parse(text, "tenants")
	root, _ := r.Pairs(body, "the file")
	for _, list := range root {
		for _, tenant := range r.Items(list.Value, list.Key) {
			pairs, _ := r.Pairs(tenant, "a tenant")
			for _, p := range pairs {
				if p.Key != "keys" || p.Value.Kind() != strictyaml.List {
					continue
				}
				for _, key := range r.Items(p.Value, "keys") {
					fields, _ := r.Pairs(key, "a key")
					for _, f := range fields {
						if f.Key == "id" && r.text(f.Value, "id") == id {
							return key
						}
					}
				}
			}
		}
	}
	return strictyaml.Node{}
}

// replaceValue puts a value in the place of a scalar that is written in one line.
// What it makes of anything else does not pass changesOnly.
func replaceValue(lines [][]byte, old strictyaml.Node, value string) ([]byte, error) {
	n := old.Line() - 1
	if n >= len(lines) {
		return nil, errByHand
	}
	line := []rune(string(lines[n])) // columns count characters
	from := old.Column() - 1
	if from >= len(line) {
		return nil, errByHand
	}
	to := from
	if q := line[from]; q == '"' || q == '\'' {
		for to++; to < len(line) && line[to] != q; to++ {
		}
		to++
	} else {
		for to < len(line) && !strings.ContainsRune(" \t\r\n,}", line[to]) {
			to++
		}
	}
	if to > len(line) {
		return nil, errByHand
	}
	lines[n] = []byte(string(line[:from]) + value + string(line[to:]))
	return bytes.Join(lines, nil), nil
}

// insertInFlow adds a field before the brace that ends a mapping.
func insertInFlow(lines [][]byte, m *ast.MappingNode, field string) ([]byte, error) {
	if m.End == nil || m.End.Position.Line > len(lines) {
		return nil, errByHand
	}
	n, column := m.End.Position.Line-1, m.End.Position.Column-1
	line := []rune(string(lines[n]))
	if column >= len(line) || line[column] != '}' {
		return nil, errByHand
	}
	head := string(line[:column])
	kept := strings.TrimRight(head, " ")
	lines[n] = []byte(kept + ", " + field + head[len(kept):] + string(line[column:]))
	return bytes.Join(lines, nil), nil
}

func eolOf(lines [][]byte) string {
	if len(lines) > 0 && bytes.HasSuffix(lines[0], []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}
