package translate

import (
	"bufio"
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

// TestTokensAreThoseOfTheEngine compares what ForTokens makes of bodies with what the
// engine's own messages route made of them: vLLM 0.32.0's conversion was called with
// each body of testdata/vllm-0.32.0.jsonl, and what reaches its chat template kept.
func TestTokensAreThoseOfTheEngine(t *testing.T) {
	f, err := os.Open("testdata/vllm-0.32.0.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var pair struct {
			Messages json.RawMessage
			Chat     map[string]any
		}
		if err := json.Unmarshal(lines.Bytes(), &pair); err != nil {
			t.Fatal(err)
		}
		n++
		got, err := AppendChat(nil, pair.Messages, ForTokens, nil)
		if err != nil {
			t.Errorf("%s: %v", pair.Messages, err)
			continue
		}
		var ours map[string]any
		if err := json.Unmarshal(got, &ours); err != nil {
			t.Fatal(err)
		}
		delete(ours, "model")
		sameToTemplates(ours)
		sameToTemplates(pair.Chat)
		if !reflect.DeepEqual(ours, pair.Chat) {
			t.Errorf("%s\n   ours %v\nengine %v", pair.Messages, ours, pair.Chat)
		}
	}
	if lines.Err() != nil || n < 15 {
		t.Errorf("%d bodies: %v", n, lines.Err())
	}
}

// sameToTemplates evens out what no chat template sees: the engine parses the
// arguments of calls, takes missing content for empty, and leaves no null in a tool.
func sameToTemplates(chat map[string]any) {
	for _, m := range chat["messages"].([]any) {
		m := m.(map[string]any)
		if m["content"] == nil {
			m["content"] = ""
		}
		calls, _ := m["tool_calls"].([]any)
		for _, c := range calls {
			f := c.(map[string]any)["function"].(map[string]any)
			var input any
			if json.Unmarshal([]byte(f["arguments"].(string)), &input) == nil {
				f["arguments"] = input
			}
		}
	}
	tools, _ := chat["tools"].([]any)
	for _, tool := range tools {
		f := tool.(map[string]any)["function"].(map[string]any)
		if f["description"] == nil {
			delete(f, "description")
		}
	}
}
