package discovery

import (
	"encoding/json"
	"testing"
)

// A length that can't be read is not told; the list is good all the same.
func TestLengthsOfModels(t *testing.T) {
	for text, want := range map[string]modelLength{
		"4096": 4096, "4096.0": 4096, "null": 0, `"4096"`: 0, "-1": 0, "0": 0, "1e300": 0, "{}": 0, "[1]": 0, "true": 0,
	} {
		list, err := parseModels([]byte(`{"data":[{"id":"m","max_model_len":` + text + `},{"id":"n"}]}`))
		if err != nil || len(list) != 2 || list[0].Context != want || list[1].Context != 0 {
			t.Errorf("max_model_len %s: %+v, %v; want %d", text, list, err, want)
		}
	}
}

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
