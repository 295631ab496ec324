package bodyscan

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// scanModel is the smallest dialect: it reads the model, the salt and the priority.
func scanModel(req *wire.Request, body string) error {
	s := New(req, wire.Chat, []byte(body))
	if err := s.Begin(); err != nil {
		return err
	}
	for f, _, ok := s.Field(); ok; f, _, ok = s.Field() {
		switch f {
		case wire.FieldModel:
			req.Model = s.StringField()
		case wire.FieldCacheSalt:
			req.CacheSalt = s.StringField()
		case wire.FieldPriority:
			s.Integer(f)
		case wire.FieldMessages:
			s.Count()
		default:
			s.Skip()
		}
		s.EndField(f)
	}
	if err := s.End(); err != nil {
		return err
	}
	if s.Settle(); s.Err != nil {
		return s.Err
	}
	return nil
}

func TestScannerRefuses(t *testing.T) {
	f := func(body, code, param string) {
		t.Helper()
		var req wire.Request
		err := scanModel(&req, body)
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != code || e.Param != param || e.Status != 400 {
			t.Errorf("%s: %+v, want %s at %q", body, err, code, param)
		}
	}
	f(`7`, "invalid_json", "")
	f(`[`, "invalid_json", "")
	f(`{"model":"m"`, "invalid_json", "")
	f(`{}`, "invalid_request", "model")
	f(`{"model":"m","mod\u0065l":"m"}`, "duplicate_key", "model")
	f(`{"model":{}}`, "invalid_request", "model")
	f(`{"model":"m","priority":1.5}`, "invalid_request", "priority")
	f(`{"model":"m","messages":[{"role":1,"role":2}]}`, "duplicate_key", "messages")
	// The first fault is told, unless the body is no JSON.
	f(`{"priority":-1,"model":"m","model":"n"}`, "invalid_request", "priority")
	f(`{"priority":-1,"model":`, "invalid_json", "")
}

func TestWatchedNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for i := range watchedNames {
		w := Watched(1) << i
		if name := w.String(); name == "" || seen[name] || watchedOf([]byte(name), w) != w || watchedOf([]byte(name), always)&^always != 0 {
			t.Errorf("bit %d is %q", i, name)
		} else {
			seen[name] = true
		}
	}
	if Watched(0).String() != "" || watchedOf([]byte("function"), always) != 0 {
		t.Error("a name is watched that nobody asked for")
	}
}

func TestEdit(t *testing.T) {
	f := func(body string, m wire.Mutation, want string) {
		t.Helper()
		var req wire.Request
		if err := scanModel(&req, body); err != nil {
			t.Fatal(err)
		}
		var e jsonscan.Edits
		Edit(&e, []byte(body), &req, &m)
		if got := string(e.Apply(nil, []byte(body))); got != want {
			t.Errorf("%s becomes %s, want %s", body, got, want)
		}
	}
	f(`{"model":"m"}`, wire.Mutation{}, `{"model":"m"}`)
	f(`{"model":"m" }`, wire.Mutation{Model: new("w"), CacheSalt: new("s"), Priority: new(int64(2))}, `{"model":"w","cache_salt":"s","priority":2 }`)
	f(`{"priority":1,"cache_salt":"s","model":"m"}`, wire.Mutation{RemoveCacheSalt: true, RemovePriority: true}, `{"model":"m"}`)
	f(`{"cache_salt":"s","model":"m","priority":1}`, wire.Mutation{RemoveCacheSalt: true, RemovePriority: true}, `{"model":"m"}`)
}

// TestEditOfAnotherBody: a rewrite by the places of another body would write anywhere.
func TestEditOfAnotherBody(t *testing.T) {
	var req wire.Request
	if err := scanModel(&req, `{"model":"m"}`); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if p, ok := recover().(string); !ok || !strings.HasPrefix(p, "BUG:") {
			t.Errorf("recovered %v, want a bug", p)
		}
	}()
	var e jsonscan.Edits
	Edit(&e, []byte(`{"model":"mm"}`), &req, &wire.Mutation{})
}
