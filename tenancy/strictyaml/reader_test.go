package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// garden reads a small format: a list of beds with a name and a free mapping.
func garden(r *Reader, text string) (beds []map[string]any) {
	body, ok := r.Parse([]byte(text), "beds")
	if !ok {
		return nil
	}
	r.Fields(body, "the file", map[string]func(Node){
		"beds": func(n Node) {
			for _, item := range r.Items(n, "beds") {
				bed := make(map[string]any)
				r.Fields(item, "a bed", map[string]func(Node){
					"name": func(n Node) { bed["name"] = n.Scalar() },
					"plants": func(n Node) {
						pairs, _ := r.Pairs(n, "plants")
						for _, p := range pairs {
							bed[p.Key] = p.Value.Scalar()
						}
					},
				})
				beds = append(beds, bed)
			}
		},
	})
	return beds
}

func TestReadsValues(t *testing.T) {
	r := &Reader{File: "g.yaml"}
	got := garden(r, `# a comment
---
beds:
  - name: north
    plants: { leeks: 3, depth: -2, share: 0.5, "in shade": true, none: , hot: .inf, big: 18446744073709551615 }
  - plants:
      note: |
        dig deep
  - name: 'by the wall'
`)
	if err := r.Err(); err != nil || r.Problems() != 0 {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"name": "north", "leeks": uint64(3), "depth": int64(-2), "share": 0.5, "in shade": true, "none": nil, "hot": nil, "big": uint64(1<<64 - 1)},
		{"note": "dig deep\n"},
		{"name": "by the wall"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestProblems(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		r := &Reader{File: "g.yaml"}
		garden(r, text)
		var e *Error
		if !errors.As(r.Err(), &e) {
			t.Errorf("no problem in\n%s", text)
			return
		}
		for i := range want {
			want[i] = "g.yaml:" + want[i]
		}
		if got := e.Lines(); !reflect.DeepEqual(got, want) || r.Problems() != len(want) || e.Error() != strings.Join(want, "\n") {
			t.Errorf("of\n%s\ngot  %q\nwant %q", text, got, want)
		}
	}
	f("", "1:1: the file is empty; it should hold a `beds:` list")
	f("# nothing\n---\n", "1:1: the file is empty; it should hold a `beds:` list")
	f("\xff", "1:1: the file is not UTF-8 text")
	f("beds: [\n", "1:7: not valid YAML: sequence end token ']' not found")
	f("beds: []\n---\nbeds: []\n---\nx\n",
		"3:1: a second document; put all beds under one `beds:` list", "5:1: a second document; put all beds under one `beds:` list")
	f("- a\n", "1:1: the file should be a mapping, not a list")
	f("beds:\n", "1:7: beds should be a list, not nothing")
	f("beds: {}\n", "1:7: beds should be a list, not a mapping")
	f("beds: []\nbeds: []\n", `2:1: key "beds" appears twice in the file, first in line 1`)
	f("beds:\n  - name: a\n    nane: b\n    nane: c\n",
		`3:5: unknown key "nane" in a bed; known keys are name, plants`, `4:5: key "nane" appears twice in a bed, first in line 3`)
	f("beds:\n  - 7\n  - {1: 2, true: 3}\n", "2:5: a bed should be a mapping, not a number",
		"3:6: a key of a bed should be plain text, not a number",
		"3:12: a key of a bed should be plain text, not true or false")
	f("beds:\n  - <<: {name: a}\n  - &x name: a\n  - plants: &y {}\n  - plants: *y\n  - plants: !!map {}\n",
		"2:5: a key of a bed should be plain text, not a merge key, which is not allowed here",
		"3:5: a key of a bed should be plain text, not an anchor, which is not allowed here",
		"4:13: plants should be a mapping, not an anchor, which is not allowed here",
		"5:13: plants should be a mapping, not an alias, which is not allowed here",
		"6:13: plants should be a mapping, not a tag, which is not allowed here")
}

// All that a format words itself.
func TestWording(t *testing.T) {
	r := &Reader{
		File:     "g.yaml",
		ShowKey:  func(key string) string { return fmt.Sprintf("of %d bytes", len(key)) },
		KindName: func(k Kind) string { return fmt.Sprintf("kind %d", k) },
		Nearest: func(key string, known []string) string {
			if !reflect.DeepEqual(known, []string{"name", "plants"}) {
				t.Errorf("known keys %q", known)
			}
			return strings.TrimSuffix(key, "s")
		},
	}
	garden(r, "beds:\n  - names: a\n    names: b\n    s: 1\n    plants: 1\n")
	r.Fail(Node{}, "there are %d beds", 1)
	want := []string{
		"g.yaml:1:1: there are 1 beds",
		`g.yaml:2:5: unknown key of 5 bytes in a bed; did you mean "name"?`,
		"g.yaml:3:5: key of 5 bytes appears twice in a bed, first in line 2",
		"g.yaml:4:5: unknown key of 1 bytes in a bed; known keys are name, plants",
		fmt.Sprintf("g.yaml:5:13: plants should be a mapping, not kind %d", Integer),
	}
	if got := strings.Split(r.Err().Error(), "\n"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	r := &Reader{File: "g.yaml"}
	garden(r, "beds:\n"+strings.Repeat("  - 1\n", MaxProblems+150))
	var e *Error
	if !errors.As(r.Err(), &e) || len(e.Lines()) != MaxProblems+1 || e.Lines()[MaxProblems] != "g.yaml: 150 more problems" {
		t.Errorf("got %v", r.Err())
	}
}

// value is the value of the key v in a text.
func value(t *testing.T, text string) Node {
	t.Helper()
	r := &Reader{File: "v.yaml"}
	body, _ := r.Parse([]byte(text), "v")
	pairs, _ := r.Pairs(body, "the file")
	if err := r.Err(); err != nil || len(pairs) != 1 {
		t.Fatalf("%d keys, %v in\n%s", len(pairs), err, text)
	}
	return pairs[0].Value
}

func TestKinds(t *testing.T) {
	f := func(text string, want Kind, name string) {
		t.Helper()
		if got := value(t, "v: "+text+"\n").Kind(); got != want || got.String() != name {
			t.Errorf("%s: kind %d, %s; want %d, %s", text, got, got, want, name)
		}
	}
	f("", Nothing, "nothing")
	f("~", Nothing, "nothing")
	f("{ a: 1 }", Mapping, "a mapping")
	f("\n  a: 1", Mapping, "a mapping")
	f("[]", List, "a list")
	f("\n- a", List, "a list")
	f("true", Bool, "true or false")
	f("0x1F", Integer, "a number")
	f("1.5", Float, "a number")
	f("-.inf", NonFinite, "a number")
	f(".nan", NonFinite, "a number")
	f("yes", Text, "text")
	f("'1'", Text, "text")
	f("|-\n  1", Block, "text")
	f(">\n  1", Block, "text")
	f("&a 1", Anchor, "an anchor, which is not allowed here")
	f("*a", Alias, "an alias, which is not allowed here")
	f("!!str 1", Tag, "a tag, which is not allowed here")
	if k := (Node{}).Kind(); k != Nothing {
		t.Errorf("no value is %s", k)
	}
	if k := (Node{&ast.DirectiveNode{}}).Kind(); k != Other || k.String() != "something else" {
		t.Errorf("a directive is %s", k)
	}
}

func TestPlaces(t *testing.T) {
	f := func(text string, line, column int) {
		t.Helper()
		if n := value(t, text); n.Line() != line || n.Column() != column || n.AST() == nil {
			t.Errorf("of\n%s\n%d:%d, want %d:%d", text, n.Line(), n.Column(), line, column)
		}
	}
	f("v: x\n", 1, 4)
	f("v:\n  # which\n  a:\n    b: 1\n", 3, 3)
	f("v: {\n  a: 1 }\n", 2, 3)
	f("v: {}\n", 1, 4)
	if n := (Node{}); n.Line() != 1 || n.Column() != 1 || n.AST() != nil || n.Scalar() != nil {
		t.Errorf("no value is at %d:%d", n.Line(), n.Column())
	}
}

func TestInstant(t *testing.T) {
	f := func(text string, want time.Time) {
		t.Helper()
		got, ok := value(t, "v: "+text+"\n").Instant()
		if ok == want.IsZero() || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, ok, want)
		}
	}
	f("2026-03-01", time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	f(`"2026-03-01T12:00:00+01:00"`, time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC))
	f("2026-03-01T12:00:00Z", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	f("2026-02-30", time.Time{})
	f("2026", time.Time{})
	f("soon", time.Time{})
	f("[]", time.Time{})
	f("|-\n  2026-03-01", time.Time{})
}

// Every problem has the file's name, and a mapping without problems has each key
// once.
func FuzzReader(f *testing.F) {
	f.Add([]byte("beds:\n  - name: a\n    plants: { leeks: 3 }\n"))
	f.Add([]byte("a: &x 1\n? [b]\n: *x\n<<: !!map {}\n"))
	f.Add([]byte("a: 1\n---\nb: |\n  2\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := &Reader{File: "f.yaml"}
		body, ok := r.Parse(text, "v")
		if !ok && r.Problems() == 0 {
			t.Fatal("no document and no problem")
		}
		pairs, ok := r.Pairs(body, "the file")
		if !ok && r.Problems() == 0 {
			t.Fatal("no mapping and no problem")
		}
		seen := make(map[string]bool)
		for _, p := range pairs {
			if seen[p.Key] {
				t.Fatalf("key %q came twice", p.Key)
			}
			seen[p.Key] = true
			if p.At.Line() < 1 || p.Value.Line() < 1 || p.Value.Column() < 1 {
				t.Fatalf("key %q is at line %d, its value at %d:%d", p.Key, p.At.Line(), p.Value.Line(), p.Value.Column())
			}
			p.Value.Instant()
			if p.Value.Kind() == List {
				r.Items(p.Value, "a list")
			}
		}
		if r.Problems() == 0 {
			return
		}
		for line := range strings.Lines(r.Err().Error()) {
			if !strings.HasPrefix(line, "f.yaml:") {
				t.Fatalf("a problem without its file: %q", line)
			}
		}
	})
}

// TestDearTextIsRefused: what the library would take a gigabyte, minutes or the process
// for is a problem with a place.
func TestDearTextIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nested brackets": {strings.Repeat("[", 1<<20), "f.yaml:1:129: values are nested deeper than 128 levels"},
		"blank lines":     {"v: |\n" + strings.Repeat("\n", 1<<20), "f.yaml:102:1: more than 100 blank lines in a row"},
		"a long mapping":  {strings.Repeat("a: 1\n", 1<<17), "f.yaml:10001:1: a mapping has at most 10000 entries"},
		"documents":       {strings.Repeat("---\n", 1<<17), "f.yaml:101:1: more than 100 document markers"},
	} {
		r := &Reader{File: "f.yaml"}
		if _, ok := r.Parse([]byte(c.text), "v"); ok || !strings.Contains(r.Err().Error(), c.want) {
			t.Errorf("%s: got %.200v, want %s", name, r.Err(), c.want)
		}
	}
}
