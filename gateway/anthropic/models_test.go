package anthropic

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAppendModels(t *testing.T) {
	const created = 1767225600
	models := []Model{{"a", created}, {"b/\"q\"", created}, {"c", 0}, {"d", 0}, {"e", 0}}
	f := func(p Page, ids string, more bool) {
		t.Helper()
		var got struct {
			Data    []struct{ ID string }
			HasMore bool    `json:"has_more"`
			First   *string `json:"first_id"`
			Last    *string `json:"last_id"`
		}
		body := AppendModels([]byte("x"), models, p)
		if err := json.Unmarshal(body[1:], &got); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		var list []string
		for _, m := range got.Data {
			list = append(list, m.ID)
		}
		if strings.Join(list, " ") != ids || got.HasMore != more {
			t.Errorf("%+v: %v, more %v; want %s, %v", p, list, got.HasMore, ids, more)
		}
		if (len(list) == 0) != (got.First == nil) || len(list) > 0 && (*got.First != list[0] || *got.Last != list[len(list)-1]) {
			t.Errorf("%+v: the ends of %s", p, body)
		}
	}
	const all = `a b/"q" c d e`
	f(Page{}, all, false)
	f(Page{Limit: 5}, all, false)
	f(Page{Limit: 2}, `a b/"q"`, true)
	f(Page{Limit: 2, After: `b/"q"`}, "c d", true)
	f(Page{Limit: 2, After: "c"}, "d e", false)
	f(Page{After: "e"}, "", false)
	f(Page{Before: "c"}, `a b/"q"`, false)
	f(Page{Limit: 1, Before: "c"}, `b/"q"`, true)
	f(Page{Before: "a"}, "", false)
	f(Page{After: "nobody", Before: "nobody"}, all, false)
	f(Page{After: "d", Before: "c"}, "e", false)

	if got, want := string(AppendModels(nil, nil, Page{})), `{"data":[],"has_more":false,"first_id":null,"last_id":null}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := string(AppendModel(nil, models[1])), `{"type":"model","id":"b/\"q\"","display_name":"b/\"q\"","created_at":"2026-01-01T00:00:00Z"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
