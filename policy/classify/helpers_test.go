package classify

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// each is a configuration in which every built-in detector has a label of its own.
func each() Config {
	cfg := DefaultConfig()
	cfg.Budget = time.Minute
	for i := range cfg.Builtin {
		cfg.Builtin[i].Label = cfg.Builtin[i].Detector
	}
	return cfg
}

// mustNew compiles a configuration.
func mustNew(t testing.TB, cfg Config) *Classifier {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return c
}

// scanBody scans a body without a tokenizer.
func scanBody(c *Classifier, body string) policy.Content {
	return c.Scan(context.Background(), &Request{Body: []byte(body)})
}

// scanText scans a chat message of the text.
func scanText(c *Classifier, text string) policy.Content { return scanBody(c, message(text)) }

// message is a chat body with one message.
func message(text string) string {
	return `{"model":"m","messages":[{"role":"user","content":` + quote(text) + `}]}`
}

func quote(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}
