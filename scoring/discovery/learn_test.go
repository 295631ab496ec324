package discovery

import (
	"encoding/json"
	"testing"
)

// FuzzParseModels reads answers of /v1/models: what is accepted lists what
// encoding it again lists.
func FuzzParseModels(f *testing.F) {
	f.Add([]byte(`{"object":"list","data":[{"id":"base","parent":null},{"id":"sql","root":"/adapters/sql","parent":"base"}]}`))
	f.Add([]byte(`{"data":[{"id":7}]}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(`{"data":null}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		list, err := parseModels(body)
		if err != nil {
			if list != nil {
				t.Fatalf("%d models beside an error", len(list))
			}
			return
		}
		again, err := json.Marshal(map[string]any{"data": list})
		if err != nil {
			t.Fatal(err)
		}
		relisted, err := parseModels(again)
		if err != nil || len(relisted) != len(list) {
			t.Fatalf("%d models, encoded again %d: %v", len(list), len(relisted), err)
		}
		for i := range list {
			if relisted[i].ID != list[i].ID || (relisted[i].Parent == nil) != (list[i].Parent == nil) {
				t.Fatalf("%+v, encoded again %+v", list[i], relisted[i])
			}
		}
	})
}
