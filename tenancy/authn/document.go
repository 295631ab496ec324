package authn

import (
	"encoding/hex"
	"path"
	"regexp"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"

	"github.com/sluicegate/sluice/tenancy"
)

// Sizes that policies rely on as the largest that reach them.
const (
	maxName    = 256
	maxGroups  = 128
	maxScopes  = 64
	maxEntry   = 128
	maxLabels  = 32
	maxLabel   = 63
	maxContent = 64
	maxModels  = 256
)

var (
	tenantID     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	contentLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	claimName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.:/-]{0,127}$`)
)

// document reads a tenants file into a Directory.
type document struct {
	reader
	dir *Directory
	// Where ids and secrets were first seen, for the message about a second one.
	tenantLines, keyLines, hashLines map[string]int
}

// Load reads the text of a tenants file; name is for messages.
func Load(name string, text []byte) (*Directory, error) {
	d := &document{
		reader: reader{file: name},
		dir: &Directory{
			byID: make(map[string]*tenancy.Tenant),
			keys: make(map[string]*entry),
		},
		tenantLines: make(map[string]int), keyLines: make(map[string]int), hashLines: make(map[string]int),
	}
	if !utf8.Valid(text) {
		d.fail(nil, "the file is not UTF-8 text")
		return nil, d.err()
	}
	body := d.parse(text)
	if body == nil {
		if len(d.problems) == 0 {
			d.fail(nil, "the file is empty; it should hold a `tenants:` list")
		}
		return nil, d.err()
	}
	found := false
	d.fields(body, "the file", map[string]func(ast.Node){
		"tenants": func(n ast.Node) {
			found = true
			for _, item := range d.items(n, "tenants") {
				d.tenant(item)
			}
		},
	})
	if !found && len(d.problems) == 0 {
		d.fail(body, "the file has no `tenants:` list")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	sort.Slice(d.dir.tenants, func(i, j int) bool { return d.dir.tenants[i].ID < d.dir.tenants[j].ID })
	sort.SliceStable(d.dir.infos, func(i, j int) bool { return d.dir.infos[i].Tenant < d.dir.infos[j].Tenant })
	return d.dir, nil
}

func (d *document) tenant(n ast.Node) {
	t := &tenancy.Tenant{}
	var keys ast.Node
	named := false
	ok := d.fields(n, "a tenant", map[string]func(ast.Node){
		"id":            func(n ast.Node) { t.ID, named = d.tenantID(n), true },
		"team":          func(n ast.Node) { t.Team = d.shortText(n, "team") },
		"tier":          func(n ast.Node) { t.Tier = d.shortText(n, "tier") },
		"labels":        func(n ast.Node) { t.Labels = d.labels(n) },
		"contentLabels": func(n ast.Node) { t.ContentLabels = d.contentLabels(n) },
		"models":        func(n ast.Node) { t.Models = d.models(n) },
		"disabled":      func(n ast.Node) { t.Disabled = d.boolean(n, "disabled") },
		"expose":        func(n ast.Node) { t.Expose = d.expose(n) },
		"keys":          func(n ast.Node) { keys = n },
	})
	if !ok {
		return
	}
	if !named {
		d.fail(n, "a tenant has no id")
	}
	d.dir.tenants = append(d.dir.tenants, t)
	d.dir.byID[t.ID] = t
	if keys == nil {
		return
	}
	if _, empty := keys.(*ast.NullNode); empty {
		return
	}
	for _, item := range d.items(keys, "keys") {
		d.key(t, item)
	}
}

func (d *document) tenantID(n ast.Node) string {
	id, ok := d.textOf(n, "id")
	if !ok {
		return ""
	}
	if !tenantID.MatchString(id) {
		d.fail(n, "a tenant's id should be 1 to 63 letters, digits, dots, underscores and hyphens, starting with a letter or digit")
	}
	d.once(n, d.tenantLines, id, "this tenant id")
	return id
}

// once reports a value that was seen before, without showing it.
func (d *document) once(n ast.Node, lines map[string]int, value, what string) {
	if line, dup := lines[value]; dup {
		d.fail(n, "%s is used twice, first in line %d", what, line)
		return
	}
	lines[value] = n.GetToken().Position.Line
}

func (d *document) shortText(n ast.Node, what string) string {
	s := d.text(n, what)
	if len(s) > maxName || strings.ContainsFunc(s, isControl) {
		d.fail(n, "%s should be at most %d bytes without control characters", what, maxName)
	}
	return s
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

func (d *document) labels(n ast.Node) map[string]string {
	pairs, ok := d.pairs(n, "labels")
	if !ok {
		return nil
	}
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		v := d.text(p.value, "the value of a label")
		if len(p.key) == 0 || len(p.key) > maxLabel || len(v) > maxLabel {
			d.fail(p.node, "a label's key and value should be at most %d bytes, the key not empty", maxLabel)
		}
		out[p.key] = v
	}
	if len(pairs) > maxLabels {
		d.fail(n, "labels has %d entries, at most %d are allowed", len(pairs), maxLabels)
	}
	return out
}

func (d *document) contentLabels(n ast.Node) []string {
	out := d.texts(n, "contentLabels", maxContent, maxLabel)
	for _, s := range out {
		if !contentLabel.MatchString(s) {
			d.fail(n, "a content label should be lower-case letters, digits and inner hyphens")
			break
		}
	}
	return out
}

func (d *document) models(n ast.Node) []string {
	items := d.items(n, "models")
	out := d.texts(n, "models", maxModels, maxName)
	for i, glob := range out {
		if _, err := path.Match(glob, "model"); err != nil || glob == "" {
			d.fail(items[i], "an entry of models is no usable glob: write a name, or a pattern like qwen-*")
		}
	}
	if len(items) == 0 {
		d.fail(n, "models lists nothing; leave it out to allow all models, or set disabled to refuse the tenant")
	}
	return out
}

func (d *document) expose(n ast.Node) tenancy.Expose {
	var e tenancy.Expose
	d.fields(n, "expose", map[string]func(ast.Node){
		"worker":   func(n ast.Node) { e.Worker = d.boolean(n, "expose.worker") },
		"policy":   func(n ast.Node) { e.Policy = d.boolean(n, "expose.policy") },
		"overhead": func(n ast.Node) { e.Overhead = d.boolean(n, "expose.overhead") },
	})
	return e
}

func (d *document) key(t *tenancy.Tenant, n ast.Node) {
	var rec Record
	e := &entry{}
	named, hashed := false, false
	ok := d.fields(n, "a key", map[string]func(ast.Node){
		"id":       func(n ast.Node) { rec.ID, named = d.keyID(n), true },
		"sha256":   func(n ast.Node) { rec.SHA256, hashed = d.hash(n, e), true },
		"name":     func(n ast.Node) { rec.Name = d.shortText(n, "name") },
		"groups":   func(n ast.Node) { rec.Groups = d.texts(n, "groups", maxGroups, maxEntry) },
		"scopes":   func(n ast.Node) { rec.Scopes = d.texts(n, "scopes", maxScopes, maxEntry) },
		"claims":   func(n ast.Node) { rec.Claims = d.claims(n) },
		"created":  func(n ast.Node) { rec.Created = d.instant(n, "created") },
		"expires":  func(n ast.Node) { rec.Expires = d.instant(n, "expires") },
		"disabled": func(n ast.Node) { rec.Disabled = d.boolean(n, "disabled") },
	})
	if !ok {
		return
	}
	if !named {
		d.fail(n, "a key has no id")
	}
	if !hashed {
		d.fail(n, "a key has no sha256; `sluice keys create` makes one")
	}
	e.expires, e.disabled = rec.Expires, rec.Disabled
	e.principal = &tenancy.Principal{
		Kind: tenancy.KindAPIKey, ID: "key:" + rec.ID, KeyID: rec.ID, Subject: rec.Name,
		Groups: rec.Groups, Scopes: rec.Scopes, Claims: rec.Claims, Tenant: t,
	}
	d.dir.keys[rec.ID] = e
	d.dir.infos = append(d.dir.infos, KeyInfo{Tenant: t.ID, Record: rec})
}

func (d *document) keyID(n ast.Node) string {
	// An id of digits alone is a number to YAML, and 007 not even a decimal one.
	id, ok := d.textOf(n, "a key's id")
	if !ok {
		return ""
	}
	if !validKeyID([]byte(id)) {
		d.fail(n, "a key's id should be 1 to %d lower-case letters and digits, the part between the underscores of the key", maxKeyID)
	}
	d.once(n, d.keyLines, id, "this key id")
	return id
}

func (d *document) hash(n ast.Node, e *entry) string {
	s, ok := d.textOf(n, "sha256")
	if !ok {
		return ""
	}
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != len(e.hash) || strings.ToLower(s) != s {
		d.fail(n, "sha256 should be %d lower-case hexadecimal digits, the digest of the key's secret; never put the secret itself here", 2*len(e.hash))
		return s
	}
	copy(e.hash[:], raw)
	d.once(n, d.hashLines, s, "this secret")
	return s
}

func (d *document) claims(n ast.Node) map[string]any {
	pairs, ok := d.pairs(n, "claims")
	if !ok {
		return nil
	}
	out := make(map[string]any, len(pairs))
	for _, p := range pairs {
		if !claimName.MatchString(p.key) {
			d.fail(p.node, "a claim's name should be letters, digits and _ . : / -, at most 128")
			continue
		}
		seq, isList := p.value.(*ast.SequenceNode)
		if !isList {
			out[p.key] = d.scalar(p.value)
			continue
		}
		list := make([]any, 0, len(seq.Values))
		for _, item := range seq.Values {
			list = append(list, d.scalar(item))
		}
		out[p.key] = list
	}
	return out
}

func (d *document) scalar(n ast.Node) any {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value
	case *ast.LiteralNode:
		return v.Value.Value
	case *ast.BoolNode:
		return v.Value
	case *ast.FloatNode:
		return v.Value
	case *ast.IntegerNode:
		switch i := v.Value.(type) {
		case int64:
			return i
		case uint64:
			if i < 1<<63 {
				return int64(i)
			}
		}
		d.fail(n, "a claim's number does not fit 64 bits")
		return int64(0)
	}
	d.fail(n, "a claim should be text, a number, true, false, or a list of those, not %s", kindOf(n))
	return nil
}
