package policy

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Set is a compiled set of policies and bindings. It is immutable and safe for
// concurrent use.
type Set struct {
	cfg      *Config
	revision string
	warnings []Warning
	policies []*compiled
	// enforced and warned bindings together, and those that only audit, each in
	// the order of evaluation.
	live, shadow           []*binding
	liveIndex, shadowIndex *index
	times                  timeLimits
	// shared counts the expressions that share their results.
	shared int
	// pools by the model that they serve, as indices into cfg.Pools.
	serving map[string][]int
}

// Load reads every *.yaml and *.yml file under the root of fsys and under the
// directories that links there lead to, those aside whose name or whose
// directory's begins with a dot, and compiles the set. The error is a *LoadError
// that lists every fault; there is no partly loaded Set.
func Load(cfg Config, fsys fs.FS) (*Set, error) {
	files, err := Files(fsys, ".")
	if err != nil {
		return nil, &LoadError{Errors: []Error{{Text: fmt.Sprintf("cannot list the policy files: %v", err)}}}
	}
	return LoadFiles(cfg, fsys, files)
}

// Files lists the documents below root, which may be a file itself: those whose names end in .yaml or .yml,
// without hidden ones and hidden folders, with those in linked folders.
func Files(fsys fs.FS, root string) ([]string, error) {
	w := fileWalk{fsys: fsys}
	err := w.walk(root, false)
	return w.files, err
}

// fileWalk lists policy files.
type fileWalk struct {
	fsys  fs.FS
	files []string
}

// walk lists the files under root. A link to a folder is followed, since Kubernetes mounts the folders of a
// volume so, and rules that are left out in silence are an open door. linked says that root is such a link:
// another one inside of it could lead round in a circle, and is an error.
func (w *fileWalk) walk(root string, linked bool) error {
	return fs.WalkDir(w.fsys, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// Kubernetes keeps the versions of a mounted ConfigMap in directories whose
		// names begin with two dots, beside links to the current one; editors keep
		// their locks and copies in hidden files.
		if name != root && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if name != root && w.linksToFolder(name, d) {
			if linked {
				return fmt.Errorf("%s is a link to a folder inside a linked folder, and only one such link is followed: put the policies there themselves", name)
			}
			return w.walk(name, true)
		}
		if ext := path.Ext(name); !d.IsDir() && (ext == ".yaml" || ext == ".yml") {
			w.files = append(w.files, name)
		}
		return nil
	})
}

func (w *fileWalk) linksToFolder(name string, d fs.DirEntry) bool {
	if d.Type()&fs.ModeSymlink == 0 {
		return false
	}
	info, err := fs.Stat(w.fsys, name)
	return err == nil && info.IsDir() // a link that leads nowhere counts as a file: reading it says why not
}

// LoadFiles is Load for the named files of fsys.
func LoadFiles(cfg Config, fsys fs.FS, files []string) (*Set, error) {
	p := &problems{}
	full := cfg.clone()
	full.validate(p)
	docs := readDocuments(p, fsys, files)
	s := build(p, &full, docs)
	if len(p.list) > 0 {
		return nil, &LoadError{Errors: p.sorted()}
	}
	return s, nil
}

// documents are the decoded documents of a load.
type documents struct {
	policies []*policyDoc
	bindings []*bindingDoc
	headers  []header
}

func readDocuments(p *problems, fsys fs.FS, files []string) documents {
	var out documents
	seen := map[string]Error{}
	if len(files) > maxFiles {
		p.addAt("", 0, 0, "", fmt.Sprintf("%d files, at most %d are read: keep other YAML elsewhere", len(files), maxFiles))
		return out
	}
	total, tokens := 0, 0
	for _, name := range slices.Sorted(slices.Values(files)) {
		docs, size := readYAML(p, fsys, name)
		if total += size; total > maxTotalSize {
			p.addAt(name, 0, 0, "", fmt.Sprintf("the files up to this one have more than %d bytes together: remove what is no policy", maxTotalSize))
			return out
		}
		for _, doc := range docs {
			if tokens += doc.tokens; tokens > maxTotalTokens {
				p.addAt(name, 0, 0, "", fmt.Sprintf("the files up to this one have more than %d words and signs together: remove what is no policy", maxTotalTokens))
				return out
			}
			h, ok := decodeHeader(p, doc)
			if !ok || h.kind == kindTest {
				continue
			}
			out.headers = append(out.headers, h)
			line, col := h.root.position()
			key := h.kind + "/" + h.name
			if first, dup := seen[key]; dup && h.name != "" {
				h.root.errorf(p, "the name is taken by the %s at %s:%d", h.kind, first.File, first.Line)
			}
			seen[key] = Error{File: name, Line: line, Col: col}
			if h.kind == kindPolicy {
				out.policies = append(out.policies, decodePolicy(p, h))
			} else {
				out.bindings = append(out.bindings, decodeBinding(p, h))
			}
		}
	}
	return out
}

func build(p *problems, cfg *Config, docs documents) *Set {
	s := &Set{cfg: cfg, serving: map[string][]int{}, times: timeLimits{exprTimeLimit, requestTimeLimit}}
	checkCounts(p, cfg, docs)
	cfg.adopt(docs.policies)
	for i, pool := range cfg.Pools {
		for _, m := range pool.Models {
			s.serving[m] = append(s.serving[m], i)
		}
	}
	b := &builder{p: p, cfg: cfg}
	if !b.buildEnv() {
		return s
	}
	policies := map[string]*policyDoc{}
	for _, d := range docs.policies {
		policies[d.name] = d
	}
	bindings, sizes := b.decodeParams(docs.bindings, policies)
	compiledBy := map[string]*compiled{}
	for _, d := range docs.policies {
		c := b.compilePolicy(d, sizes[d.name])
		compiledBy[d.name] = c
		s.policies = append(s.policies, c)
	}
	slices.SortFunc(s.policies, func(a, b *compiled) int { return strings.Compare(a.name, b.name) })
	for _, bd := range bindings {
		bd.policy = compiledBy[bd.doc.policy]
		b.checkZones(bd)
		b.checkCurrencies(bd)
	}
	s.order(bindings)
	s.share()
	if len(p.list) == 0 {
		b.review(s)
		s.warnings = b.warnings
		s.revision = revision(cfg, docs.headers)
	}
	return s
}

// checkZones holds the parameters that name time zones against those that there
// are.
func (b *builder) checkZones(bd *binding) {
	seen := map[string]bool{}
	for _, x := range bd.policy.expressions() {
		for _, name := range x.zones {
			zone, ok := bd.params[name].(types.String)
			if ok && !seen[name] && checkZone(string(zone)) != nil {
				bd.doc.params.errorf(b.p, "%s is used as a time zone, and there is no %q: use a name such as Europe/Berlin, or an offset such as +01:00", name, cut(string(zone), 80))
			}
			seen[name] = true
		}
	}
}

func checkCounts(p *problems, cfg *Config, docs documents) {
	switch {
	case len(docs.policies) == 0 && len(p.list) == 0 && !cfg.AllowEmpty:
		p.addAt("", 0, 0, "", "no policy was found: check the directory, or allow an empty set with policy.allowEmpty: true")
	case len(docs.policies) > maxPolicies:
		p.addAt("", 0, 0, "", fmt.Sprintf("%d policies, at most %d are allowed", len(docs.policies), maxPolicies))
	case len(docs.bindings) > maxBindings:
		p.addAt("", 0, 0, "", fmt.Sprintf("%d bindings, at most %d are allowed", len(docs.bindings), maxBindings))
	}
}

// buildEnv declares the base variables and the configured claims.
func (b *builder) buildEnv() bool {
	env, err := baseEnv()
	if err != nil {
		b.p.addAt("", 0, 0, "", err.Error())
		return false
	}
	b.vars = map[string]variable{}
	for _, v := range baseVariables() {
		b.vars[v.name] = v
	}
	var opts []cel.EnvOption
	for _, name := range slices.Sorted(maps.Keys(b.cfg.Claims)) {
		v, err := claimVariable(name, b.cfg.Claims[name])
		if err != nil {
			continue // reported with the configuration
		}
		b.vars[v.name] = v
		opts = append(opts, cel.Variable(v.name, v.typ))
	}
	if len(opts) > 0 {
		if env, err = env.Extend(opts...); err != nil {
			b.p.addAt("", 0, 0, "", fmt.Sprintf("cannot declare the claims: %v", err))
			return false
		}
	}
	b.env = env
	return true
}

// decodeParams reads the parameters of every binding and the largest sizes that
// they give to each policy's parameters.
func (b *builder) decodeParams(docs []*bindingDoc, policies map[string]*policyDoc) ([]*binding, map[string]map[string]valueSize) {
	var out []*binding
	sizes := map[string]map[string]valueSize{}
	note := func(policy, name string, s valueSize) {
		if sizes[policy] == nil {
			sizes[policy] = map[string]valueSize{}
		}
		sizes[policy][name] = sizes[policy][name].union(s)
	}
	for _, pd := range policies {
		for _, s := range pd.params {
			if s.def != nil {
				note(pd.name, "params."+s.name, sizeOf(s.def))
			}
		}
	}
	names := slices.Sorted(maps.Keys(policies))
	for _, d := range docs {
		pd, ok := policies[d.policy]
		if !ok {
			if d.policy != "" {
				d.policyAt.errorf(b.p, "there is no policy %q%s", cut(d.policy, 80), didYouMean(d.policy, names))
			}
			continue
		}
		bd := &binding{name: d.name, doc: d, selector: &d.selector, mode: d.mode, audit: d.audit, params: map[string]ref.Val{}}
		for name, v := range paramValues(b.p, pd.params, d) {
			if v != nil {
				bd.params["params."+name] = v
				note(pd.name, "params."+name, sizeOf(v))
			}
		}
		out = append(out, bd)
	}
	return out, sizes
}

// order fixes the order of evaluation.
func (s *Set) order(all []*binding) {
	all = slices.DeleteFunc(all, func(b *binding) bool { return b.policy == nil })
	slices.SortFunc(all, compareBindings)
	room := maxIndexValues
	for _, b := range all {
		b.constrain(&room)
		for j := range b.policy.limits {
			l := &b.policy.limits[j]
			currency, _ := s.cfg.currencyOf(b, l) // an error is reported by checkCurrencies
			b.counters = append(b.counters, counterPrefix(b, l, currency))
		}
		if b.mode == Shadow {
			s.shadow = append(s.shadow, b)
		} else {
			s.live = append(s.live, b)
		}
	}
	s.reindex()
}

func (s *Set) reindex() { s.liveIndex, s.shadowIndex = buildIndex(s.live), buildIndex(s.shadow) }

// share numbers the expressions with equal texts that read nothing of their
// policy or binding. Typically those are match conditions, so that 20 policies
// for the same operations look at the operation once.
func (s *Set) share() {
	byText := map[string][]*expression{}
	for _, c := range s.policies {
		for _, x := range c.expressions() {
			if !x.private() {
				byText[x.text] = append(byText[x.text], x)
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		if same := byText[text]; len(same) > 1 {
			s.shared++
			for _, x := range same {
				x.shared = s.shared
			}
		}
	}
}

// private reports whether an expression reads what differs between policies,
// bindings or the phases of a request.
func (x *expression) private() bool {
	return slices.ContainsFunc(x.reads, func(name string) bool {
		space, _, _ := strings.Cut(name, ".")
		return slices.Contains([]string{"params", "variables", "effective", "usage"}, space)
	})
}

// Revision identifies the set: sha256: and the digest of its policies and
// bindings, the declared claims and the evaluator's version. Comments, layout
// and file names do not change it.
func (s *Set) Revision() string { return s.revision }

// Isolates reports whether a request can be given the isolation tenant or
// principal: by the default, or by an effect of an enforced binding. Such a set
// needs a key for cache salts.
func (s *Set) Isolates() bool {
	none := isolationRank(IsolationNone)
	return isolationRank(s.cfg.DefaultIsolation) > none || slices.ContainsFunc(s.live, func(b *binding) bool {
		return b.mode == Enforced && slices.ContainsFunc(b.policy.effects, func(e effect) bool { return e.isolation > none })
	})
}

// ReadsContent reports whether an expression of a bound policy reads one of the
// variables that scan the content: content.labels, .findings, .detectors or
// .scan_status.
func (s *Set) ReadsContent() bool {
	return slices.ContainsFunc(slices.Concat(s.live, s.shadow), func(b *binding) bool {
		return slices.ContainsFunc(b.policy.expressions(), func(x *expression) bool { return x.content })
	})
}

// Warnings are in the order of files and lines.
func (s *Set) Warnings() []Warning { return slices.Clone(s.warnings) }

// Estimate is the estimated maximum cost of one expression, at the largest
// request that [Input.Validate] admits.
type Estimate struct {
	// At is the expression's place, without a text.
	At   Error
	Cost int64
}

// Estimates lists all expressions in the order of files and lines.
func (s *Set) Estimates() []Estimate {
	var out []Estimate
	for _, c := range s.policies {
		for _, x := range c.expressions() {
			out = append(out, Estimate{x.at, int64(x.estimate)})
		}
	}
	slices.SortFunc(out, func(a, b Estimate) int { return compareErrors(a.At, b.At) })
	return out
}

// Shuffled returns a set that evaluates the same bindings in another order.
// Every decision must be equal to that of s; it serves tests of that.
func (s *Set) Shuffled(seed uint64) *Set {
	r := rand.New(rand.NewPCG(seed, 0))
	c := *s
	c.live, c.shadow = slices.Clone(s.live), slices.Clone(s.shadow)
	r.Shuffle(len(c.live), func(i, j int) { c.live[i], c.live[j] = c.live[j], c.live[i] })
	r.Shuffle(len(c.shadow), func(i, j int) { c.shadow[i], c.shadow[j] = c.shadow[j], c.shadow[i] })
	c.reindex()
	return &c
}
