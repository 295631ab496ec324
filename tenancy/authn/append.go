package authn

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml/ast"

	"github.com/sluicegate/sluice/tenancy/strictyaml"
)

// AppendKey adds a record to a tenant in a tenants file, keeping every other
// byte of it, comments included. The file is replaced atomically and keeps its
// permissions; on an error it is unchanged. Concurrent calls, of other
// processes too, take turns. The result is read back before it replaces the
// file: it must hold what was there and the new key, nothing else.
func AppendKey(file, tenant string, rec *Record) error {
	err := editFile(file, func(text []byte) ([]byte, error) { return appendKey(file, text, tenant, rec) })
	if err != nil {
		return fmt.Errorf("cannot add a key: %w", err)
	}
	return nil
}

// lockFolder holds an advisory lock on a folder. Locking the file itself would
// not do, since it is replaced.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock the folder %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

func replaceFile(path string, text []byte) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
		}
	}()
	if err = tmp.Chmod(info.Mode().Perm()); err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err = tmp.Chown(int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if _, err = tmp.Write(text); err != nil {
		return err
	}
	if err = tmp.Sync(); err != nil {
		return err
	}
	if err = tmp.Close(); err != nil {
		return err
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// errByHand is for layouts that a line-wise edit can't keep.
var errByHand = errors.New("this layout can't be edited without rewriting it; paste the record by hand")

// appendKey returns the text with the record added.
func appendKey(name string, text []byte, tenant string, rec *Record) ([]byte, error) {
	before, err := Load(name, text)
	if err != nil {
		return nil, err
	}
	if before.Tenant(tenant) == nil {
		return nil, fmt.Errorf("%s has no tenant %q; its tenants are %s", name, tenant, tenantNames(before))
	}
	edited, err := insertKey(text, tenant, rec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	after, err := Load(name, edited)
	if err != nil {
		return nil, fmt.Errorf("the record does not fit the file: %w", err)
	}
	if !addsOnly(before, after, tenant, rec) {
		return nil, fmt.Errorf("%s: %w", name, errByHand)
	}
	return edited, nil
}

func tenantNames(d *Directory) string {
	var names []string
	for _, t := range d.tenants {
		names = append(names, t.ID)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// addsOnly reports whether after is before and one more key of the tenant.
func addsOnly(before, after *Directory, tenant string, rec *Record) bool {
	if !reflect.DeepEqual(before.tenants, after.tenants) || len(after.infos) != len(before.infos)+1 {
		return false
	}
	var rest []KeyInfo
	for _, k := range after.infos {
		if k.ID == rec.ID && k.Tenant == tenant && k.SHA256 == rec.SHA256 {
			continue
		}
		rest = append(rest, k)
	}
	return len(rest) == len(before.infos) && (len(rest) == 0 || reflect.DeepEqual(rest, before.infos))
}

// insertKey edits the text by lines: after the last key of the tenant, or as a
// new list at the end of the tenant.
func insertKey(text []byte, tenant string, rec *Record) ([]byte, error) {
	node, keys := findTenant(text, tenant)
	if m, ok := node.AST().(*ast.MappingNode); !ok || m.IsFlowStyle {
		return nil, errByHand
	}
	lines := splitLines(text)
	// column counts from 1; indent is the spaces before the tenant's keys.
	indent := node.Column() - 1
	if keys == nil {
		at := blockEnd(lines, node.Line(), indent, false)
		return insert(lines, at, rec, indent, true), nil
	}
	line := keys.At.Line()
	switch v := keys.Value.AST().(type) {
	case *ast.NullNode:
		return insert(lines, line, rec, indent+2, false), nil
	case *ast.SequenceNode:
		if v.IsFlowStyle {
			return replaceEmptyList(lines, line, v, rec, indent+2)
		}
		dash := v.Start.Position.Column - 1
		return insert(lines, blockEnd(lines, v.Start.Position.Line, dash, true), rec, dash, false), nil
	}
	return nil, errByHand
}

// findTenant returns the mapping of a tenant and its `keys` entry, if any, in a
// text that loads.
func findTenant(text []byte, tenant string) (strictyaml.Node, *strictyaml.Pair) {
	r := newReader("")
	body, _ := r.Parse(text, "tenants")
	root, _ := r.Pairs(body, "the file")
	for _, list := range root {
		for _, item := range r.Items(list.Value, list.Key) {
			var id string
			var keys *strictyaml.Pair
			pairs, _ := r.Pairs(item, "a tenant")
			for i, p := range pairs {
				switch p.Key {
				case "id":
					id = r.text(p.Value, "id")
				case "keys":
					keys = &pairs[i]
				}
			}
			if id == tenant {
				return item, keys
			}
		}
	}
	return strictyaml.Node{}, nil
}

// splitLines cuts after each line break and keeps it.
func splitLines(text []byte) [][]byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	if n := len(lines); n > 0 && len(lines[n-1]) == 0 {
		lines = lines[:n-1]
	}
	return lines
}

// blockEnd returns how many lines there are up to and including the last one of
// the mapping or list that starts in the given line (counted from 1) with the
// given indent. A list may have the indent of the key that names it; then only
// its dashes tell its lines from those of the next key. Comments and blank lines
// after the last line are left to what follows.
func blockEnd(lines [][]byte, first, indent int, list bool) int {
	end := first
	for i := first; i < len(lines); i++ {
		body := bytes.TrimLeft(lines[i], " ")
		trimmed := bytes.TrimSpace(body)
		if len(trimmed) == 0 || trimmed[0] == '#' {
			continue
		}
		at := len(lines[i]) - len(body)
		if at < indent || at == indent && list && trimmed[0] != '-' {
			break
		}
		end = i + 1
	}
	return end
}

// insert puts the record after the first n lines, under a `keys:` line of its
// own if it is the tenant's first.
func insert(lines [][]byte, n int, rec *Record, indent int, first bool) []byte {
	eol := eolOf(lines)
	var item []byte
	if first {
		item = append(bytes.Repeat([]byte(" "), indent), "keys:\n"...)
		indent += 2
	}
	item = bytes.ReplaceAll(rec.AppendYAML(item, indent), []byte("\n"), []byte(eol))
	out := bytes.Join(lines[:n], nil)
	if !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, eol...)
	}
	return append(append(out, item...), bytes.Join(lines[n:], nil)...)
}

// replaceEmptyList turns `keys: []` into a list of the record.
func replaceEmptyList(lines [][]byte, n int, v *ast.SequenceNode, rec *Record, indent int) ([]byte, error) {
	if len(v.Values) > 0 {
		return nil, errByHand
	}
	before, after, ok := bytes.Cut(lines[n-1], []byte("[]"))
	if !ok {
		return nil, errByHand
	}
	lines[n-1] = slices.Concat(bytes.TrimRight(before, " "), after) // the line itself is the caller's
	return insert(lines, n, rec, indent, false), nil
}
