package openai

import (
	"slices"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

func TestAppendModels(t *testing.T) {
	f := func(models []Model, want string) {
		t.Helper()
		before := slices.Clone(models)
		if got := string(AppendModels([]byte("x"), models)); got != "x"+want {
			t.Errorf("AppendModels(%v)\n got %s\nwant x%s", models, got, want)
		}
		if !slices.Equal(models, before) {
			t.Errorf("AppendModels changes its argument to %v", models)
		}
	}
	f(nil, `{"object":"list","data":[]}`)
	f([]Model{{ID: "b/c", Created: 5}, {ID: `a"`, Created: 1796006461, MaxModelLen: 8192}},
		`{"object":"list","data":[`+
			`{"id":"a\"","object":"model","created":1796006461,"owned_by":"sluice","max_model_len":8192},`+
			`{"id":"b/c","object":"model","created":5,"owned_by":"sluice","max_model_len":null}]}`)
	f([]Model{{ID: "a"}, {ID: "b"}},
		`{"object":"list","data":[`+
			`{"id":"a","object":"model","created":0,"owned_by":"sluice","max_model_len":null},`+
			`{"id":"b","object":"model","created":0,"owned_by":"sluice","max_model_len":null}]}`)
}

func TestAppendModel(t *testing.T) {
	got := string(AppendModel(nil, Model{ID: "a", Created: 1, MaxModelLen: 2}))
	if want := `{"id":"a","object":"model","created":1,"owned_by":"sluice","max_model_len":2}`; got != want {
		t.Errorf("AppendModel gives %s, want %s", got, want)
	}
}

func TestNames(t *testing.T) {
	if got := (wire.Text | wire.Image | wire.Audio | wire.Video | wire.File).AppendNames([]string{"x"}); !slices.Equal(got, []string{"x", "text", "image", "audio", "video", "file"}) {
		t.Errorf("the modalities are %v", got)
	}
	if got := []string{wire.Chat.String(), wire.Completion.String(), wire.Operation(0).String()}; !slices.Equal(got, []string{"chat", "completion", "unknown"}) {
		t.Errorf("the operations are %v", got)
	}
	for f := range wire.FieldCount {
		if wire.FieldOf([]byte(f.String())) != f {
			t.Errorf("the field %v has another's name", f)
		}
	}
	if wire.FieldOf([]byte("unread")) != wire.FieldNone {
		t.Error("an unread key is a field")
	}
}
