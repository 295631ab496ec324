package openai

import (
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

func TestReadUsageRecordings(t *testing.T) {
	f := func(name string, in, out int64) {
		t.Helper()
		got, err := ReadUsage(wire.Chat, []byte(wiretest.Recordings(t)[name].ResponseBody))
		if want := (wire.Usage{Input: in, Output: out, Known: true}); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	f("chat", 10, 6)
	f("completions", 4, 4)
	f("completions_batch", 4, 4)
	f("err_priority", 9, 1)
}

func TestReadUsage(t *testing.T) {
	f := func(body string, want wire.Usage) {
		t.Helper()
		if got, err := ReadUsage(wire.Chat, []byte(body)); err != nil || got != want {
			t.Errorf("ReadUsage(wire.Chat, %s) = %+v, %v, want %+v", body, got, err, want)
		}
	}
	usage := func(usage string, want wire.Usage) {
		t.Helper()
		f(`{"choices":[{"usage":{"prompt_tokens":9,"completion_tokens":9}}],"us\u0061ge":`+usage+`,"x":1}`, want)
	}
	f(`{}`, wire.Usage{})
	f(` {"usage":null} `, wire.Usage{})
	usage(`null`, wire.Usage{})
	usage(`"many"`, wire.Usage{})
	usage(`[]`, wire.Usage{})
	usage(`{}`, wire.Usage{})
	usage(`{"prompt_tokens":1}`, wire.Usage{})
	usage(`{"completion_tokens":1}`, wire.Usage{})
	usage(`{"prompt_tokens":1,"completion_tokens":null}`, wire.Usage{})
	usage(`{"prompt_tokens":-1,"completion_tokens":1}`, wire.Usage{})
	usage(`{"prompt_tokens":1,"completion_tokens":1.5}`, wire.Usage{})
	usage(`{"prompt_tokens":"1","completion_tokens":1}`, wire.Usage{})
	usage(`{"prompt_tokens":1e300,"completion_tokens":1}`, wire.Usage{})
	usage(`{"prompt_tokens":0,"completion_tokens":0}`, wire.Usage{Known: true})
	usage(`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null}`, wire.Usage{Input: 10, Output: 2, Known: true})
	usage(`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":null}}`, wire.Usage{Input: 10, Output: 2, Known: true})
	usage(`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}`, wire.Usage{Input: 10, Output: 2, CachedKnown: true, Known: true})
	usage(`{"prompt_tokens_details":{"x":[],"cached_tokens":10},"prompt_tokens":10,"completion_tokens":2}`, wire.Usage{Input: 10, Cached: 10, Output: 2, CachedKnown: true, Known: true})
	usage(`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":11}}`, wire.Usage{Input: 10, Output: 2, Known: true})
	usage(`{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":-1}}`, wire.Usage{Input: 10, Output: 2, Known: true})
	usage(`{"prompt_tokens":10,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":2}}`, wire.Usage{Input: 10, Output: 2, Reasoning: 2, Known: true})
	usage(`{"prompt_tokens":10,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":3}}`, wire.Usage{Input: 10, Output: 2, Known: true})
	usage(`{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens":5}`, wire.Usage{Input: 5, Output: 1, Known: true})
}

func TestReadUsageErrors(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		_, err := ReadUsage(wire.Chat, []byte(body))
		if err == nil || !strings.HasPrefix(err.Error(), "cannot read usage: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("ReadUsage(wire.Chat, %q) = %v, want an error with %q", body, err, want)
		}
	}
	f(``, "it is empty (at byte 0)")
	f(`<html>s3cr3t`, "a value is expected")
	f(`"s3cr3t"`, "a string, not an object")
	f(`[]`, "an array, not an object")
	f(`{"usage":{"prompt_tokens":1,"completion_tokens":1}`, "it ends too early")
	f(`{"usage":{"prompt_tokens":1,"completion_tokens":1}} s3cr3t`, "more follows")
	f(`{"s3cr3t"}`, "a colon is expected")
}

func TestUsageCheck(t *testing.T) {
	f := func(u wire.Usage, contextLen int64, prompts int, choices int64, ok bool) {
		t.Helper()
		u.Known = true
		want := wire.Usage{}
		if ok {
			want = u
		}
		if got := u.Check(contextLen, prompts, choices); got != want {
			t.Errorf("%+v checked against %d tokens, %d prompts and %d choices is %+v", u, contextLen, prompts, choices, got)
		}
	}
	f(wire.Usage{Input: 100, Output: 100}, 100, 1, 1, true)
	f(wire.Usage{Input: 101}, 100, 1, 1, false)
	f(wire.Usage{Output: 101}, 100, 1, 1, false)
	f(wire.Usage{Input: 101}, 100, 1, 5, false)
	f(wire.Usage{Output: 500}, 100, 1, 5, true)
	f(wire.Usage{Output: 501}, 100, 1, 5, false)
	f(wire.Usage{Input: 200, Output: 1000}, 100, 2, 5, true)
	f(wire.Usage{Input: 201}, 100, 2, 5, false)
	f(wire.Usage{Output: 1001}, 100, 2, 5, false)
	f(wire.Usage{Input: 5}, 100, 0, 0, true)
	f(wire.Usage{Input: 1 << 40, Output: 1 << 40}, 0, 1, 1, true)
	f(wire.Usage{Output: 1 << 40}, 1<<31, 1<<20, 1<<31-1, true)
	if got := (wire.Usage{Input: 5}).Check(100, 1, 1); got != (wire.Usage{Input: 5}) {
		t.Errorf("usage that is not known becomes %+v", got)
	}
}
