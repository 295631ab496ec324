package authn

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/strictyaml"
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
		reader: newReader(name),
		dir: &Directory{
			byID: make(map[string]*tenancy.Tenant),
			keys: make(map[string]*entry), digest: sha256.Sum256(text),
		},
		tenantLines: make(map[string]int), keyLines: make(map[string]int), hashLines: make(map[string]int),
	}
	body, ok := d.Parse(text, "tenants")
	if !ok {
		return nil, d.Err()
	}
	found := false
	d.Fields(body, "the file", map[string]func(strictyaml.Node){
		"tenants": func(n strictyaml.Node) {
			found = true
			for _, item := range d.Items(n, "tenants") {
				d.tenant(item)
			}
		},
	})
	if !found && d.Problems() == 0 {
		d.Fail(body, "the file has no `tenants:` list")
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	sort.Slice(d.dir.tenants, func(i, j int) bool { return d.dir.tenants[i].ID < d.dir.tenants[j].ID })
	sort.SliceStable(d.dir.infos, func(i, j int) bool { return d.dir.infos[i].Tenant < d.dir.infos[j].Tenant })
	return d.dir, nil
}

func (d *document) tenant(n strictyaml.Node) {
	t := &tenancy.Tenant{}
	var keys strictyaml.Node // none: as if empty
	named := false
	ok := d.Fields(n, "a tenant", map[string]func(strictyaml.Node){
		"id":            func(n strictyaml.Node) { t.ID, named = d.tenantID(n), true },
		"team":          func(n strictyaml.Node) { t.Team = d.shortText(n, "team") },
		"tier":          func(n strictyaml.Node) { t.Tier = d.shortText(n, "tier") },
		"labels":        func(n strictyaml.Node) { t.Labels = d.labels(n) },
		"weight":        func(n strictyaml.Node) { t.Weight = d.weight(n) },
		"contentLabels": func(n strictyaml.Node) { t.ContentLabels = d.contentLabels(n) },
		"models":        func(n strictyaml.Node) { t.Models = d.models(n, "disabled to refuse the tenant") },
		"disabled":      func(n strictyaml.Node) { t.Disabled = d.boolean(n, "disabled") },
		"expose":        func(n strictyaml.Node) { t.Expose = d.expose(n) },
		"keys":          func(n strictyaml.Node) { keys = n },
	})
	if !ok {
		return
	}
	if !named {
		d.Fail(n, "a tenant has no id")
	}
	d.dir.tenants = append(d.dir.tenants, t)
	d.dir.byID[t.ID] = t
	if keys.Kind() == strictyaml.Nothing {
		return
	}
	for _, item := range d.Items(keys, "keys") {
		d.key(t, item)
	}
}

func (d *document) tenantID(n strictyaml.Node) string {
	id, ok := d.textOf(n, "id")
	if !ok {
		return ""
	}
	if !tenantID.MatchString(id) {
		d.Fail(n, "a tenant's id should be 1 to 63 letters, digits, dots, underscores and hyphens, starting with a letter or digit")
	}
	d.once(n, d.tenantLines, id, "this tenant id")
	return id
}

// once reports a value that was seen before, without showing it.
func (d *document) once(n strictyaml.Node, lines map[string]int, value, what string) {
	if line, dup := lines[value]; dup {
		d.Fail(n, "%s is used twice, first in line %d", what, line)
		return
	}
	lines[value] = n.Line()
}

func (d *document) shortText(n strictyaml.Node, what string) string {
	s := d.text(n, what)
	if len(s) > maxName || strings.ContainsFunc(s, isControl) {
		d.Fail(n, "%s should be at most %d bytes without control characters", what, maxName)
	}
	return s
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

func (d *document) labels(n strictyaml.Node) map[string]string {
	pairs, ok := d.Pairs(n, "labels")
	if !ok {
		return nil
	}
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		v := d.text(p.Value, "the value of a label")
		if len(p.Key) == 0 || len(p.Key) > maxLabel || len(v) > maxLabel {
			d.Fail(p.At, "a label's key and value should be at most %d bytes, the key not empty", maxLabel)
		}
		out[p.Key] = v
	}
	if len(pairs) > maxLabels {
		d.Fail(n, "labels has %d entries, at most %d are allowed", len(pairs), maxLabels)
	}
	return out
}

func (d *document) contentLabels(n strictyaml.Node) []string {
	out := d.texts(n, "contentLabels", maxContent, maxLabel)
	for _, s := range out {
		if !contentLabel.MatchString(s) {
			d.Fail(n, "a content label should be lower-case letters, digits and inner hyphens")
			break
		}
	}
	return out
}

// models reads globs; instead is what to set where none should be allowed.
func (d *document) models(n strictyaml.Node, instead string) []string {
	items := d.Items(n, "models")
	out := d.texts(n, "models", maxModels, maxName)
	for i, glob := range out {
		if _, err := path.Match(glob, "model"); err != nil || glob == "" {
			d.Fail(items[i], "an entry of models is no usable glob: write a name, or a pattern like qwen-*")
		}
	}
	if len(items) == 0 {
		d.Fail(n, "models lists nothing; leave it out to allow all models, or set %s", instead)
	}
	return out
}

// Weights within which one tenant can be put before another.
const minWeight, maxWeight = 0.01, 100.0

func (d *document) weight(n strictyaml.Node) float64 {
	var w float64
	switch v := n.Scalar().(type) {
	case float64:
		w = v
	case int64:
		w = float64(v)
	case uint64:
		w = float64(v)
	default:
		d.FailKind(n, "weight", "a finite number")
		return 0
	}
	if !(w >= minWeight && w <= maxWeight) {
		d.Fail(n, "weight should be between %v and %v; 1 is what a tenant without it has", minWeight, maxWeight)
	}
	return w
}

func (d *document) expose(n strictyaml.Node) tenancy.Expose {
	var e tenancy.Expose
	d.Fields(n, "expose", map[string]func(strictyaml.Node){
		"worker":   func(n strictyaml.Node) { e.Worker = d.boolean(n, "expose.worker") },
		"policy":   func(n strictyaml.Node) { e.Policy = d.boolean(n, "expose.policy") },
		"overhead": func(n strictyaml.Node) { e.Overhead = d.boolean(n, "expose.overhead") },
	})
	return e
}

func (d *document) key(t *tenancy.Tenant, n strictyaml.Node) {
	var rec Record
	named, hashed := false, false
	ok := d.Fields(n, "a key", map[string]func(strictyaml.Node){
		"id":          func(n strictyaml.Node) { rec.ID, named = d.keyID(n), true },
		"sha256":      func(n strictyaml.Node) { rec.SHA256, hashed = d.hash(n), true },
		"name":        func(n strictyaml.Node) { rec.Name = d.shortText(n, "name") },
		"groups":      func(n strictyaml.Node) { rec.Groups = d.texts(n, "groups", maxGroups, maxEntry) },
		"scopes":      func(n strictyaml.Node) { rec.Scopes = d.texts(n, "scopes", maxScopes, maxEntry) },
		"models":      func(n strictyaml.Node) { rec.Models = d.models(n, "disabled to revoke the key") },
		"operations":  func(n strictyaml.Node) { rec.Operations = d.operations(n) },
		"claims":      func(n strictyaml.Node) { rec.Claims = d.claims(n) },
		"created":     func(n strictyaml.Node) { rec.Created = d.instant(n, "created") },
		"expires":     func(n strictyaml.Node) { rec.Expires = d.instant(n, "expires") },
		"rotatedFrom": func(n strictyaml.Node) { rec.RotatedFrom = d.otherKey(n) },
		"disabled":    func(n strictyaml.Node) { rec.Disabled = d.boolean(n, "disabled") },
	})
	if !ok {
		return
	}
	if !named {
		d.Fail(n, "a key has no id")
	}
	if !hashed {
		d.Fail(n, "a key has no sha256; `sluice keys create` makes one")
	}
	d.dir.infos = append(d.dir.infos, KeyInfo{Tenant: t.ID, Record: rec})
	if e, err := newEntry(t.ID, &rec); err == nil { // else there is a problem by now
		e.principal.Tenant = t
		d.dir.keys[rec.ID] = e
	}
}

func (d *document) operations(n strictyaml.Node) []string {
	known := tenancy.Operations()
	items := d.Items(n, "operations")
	out := d.texts(n, "operations", len(known), maxEntry)
	for i, name := range out {
		if !slices.Contains(known, name) {
			d.Fail(items[i], "an entry of operations is not known, should be one of %s", strings.Join(known, ", "))
		}
	}
	if len(items) == 0 {
		d.Fail(n, "operations lists nothing; leave it out to allow all operations, or set disabled to revoke the key")
	}
	return out
}

// otherKey is the id of a key that need not be in the file any more.
func (d *document) otherKey(n strictyaml.Node) string {
	id, ok := d.textOf(n, "rotatedFrom")
	if ok && !validKeyID([]byte(id)) {
		d.Fail(n, "rotatedFrom should be the id of the key that this one replaces")
	}
	return id
}

func (d *document) keyID(n strictyaml.Node) string {
	// An id of digits alone is a number to YAML, and 007 not even a decimal one.
	id, ok := d.textOf(n, "a key's id")
	if !ok {
		return ""
	}
	if !validKeyID([]byte(id)) {
		d.Fail(n, "a key's id should be 1 to %d lower-case letters and digits, the part between the underscores of the key", maxKeyID)
	}
	d.once(n, d.keyLines, id, "this key id")
	return id
}

func (d *document) hash(n strictyaml.Node) string {
	s, ok := d.textOf(n, "sha256")
	if !ok {
		return ""
	}
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != sha256.Size || strings.ToLower(s) != s {
		d.Fail(n, "sha256 should be %d lower-case hexadecimal digits, the digest of the key's secret; never put the secret itself here", 2*sha256.Size)
		return s
	}
	d.once(n, d.hashLines, s, "this secret")
	return s
}

func (d *document) claims(n strictyaml.Node) map[string]any {
	pairs, ok := d.Pairs(n, "claims")
	if !ok {
		return nil
	}
	out := make(map[string]any, len(pairs))
	for _, p := range pairs {
		if !claimName.MatchString(p.Key) {
			d.Fail(p.At, "a claim's name should be letters, digits and _ . : / -, at most 128")
			continue
		}
		if p.Value.Kind() != strictyaml.List {
			out[p.Key] = d.scalar(p.Value)
			continue
		}
		items := d.Items(p.Value, "a claim")
		list := make([]any, len(items))
		for i, item := range items {
			list[i] = d.scalar(item)
		}
		out[p.Key] = list
	}
	return out
}

func (d *document) scalar(n strictyaml.Node) any {
	switch v := n.Scalar().(type) {
	case string, bool, float64, int64:
		return v
	case uint64:
		if v < 1<<63 {
			return int64(v)
		}
		d.Fail(n, "a claim's number does not fit 64 bits")
		return int64(0)
	}
	d.FailKind(n, "a claim", "text, a number, true, false, or a list of those")
	return nil
}
