package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// TestLimitHeadersOfBothDialects is the contract's table: names, values and which
// of several limits is shown.
func TestLimitHeadersOfBothDialects(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 400_000_000, time.UTC)
	type limit struct {
		unit policy.Unit
		view ratelimit.View
	}
	for _, c := range []struct {
		name              string
		limits            []limit
		openai, anthropic string
	}{
		{"none", nil, "", ""},
		{"what has no header", []limit{{policy.Cost, ratelimit.View{Limit: 9}}, {policy.Concurrency, ratelimit.View{Limit: 9}}}, "", ""},
		{
			"requests", []limit{{policy.Requests, ratelimit.View{Limit: 60, Remaining: 59, Reset: time.Second}}},
			"x-ratelimit-limit-requests: 60; x-ratelimit-remaining-requests: 59; x-ratelimit-reset-requests: 1s",
			"anthropic-ratelimit-requests-limit: 60; anthropic-ratelimit-requests-remaining: 59; anthropic-ratelimit-requests-reset: 2026-03-10T12:00:02Z",
		},
		{
			"tokens, below a second", []limit{{policy.Tokens, ratelimit.View{Limit: 1000, Remaining: 990, Reset: 599*time.Millisecond + 1}}},
			"x-ratelimit-limit-tokens: 1000; x-ratelimit-remaining-tokens: 990; x-ratelimit-reset-tokens: 600ms",
			"anthropic-ratelimit-tokens-limit: 1000; anthropic-ratelimit-tokens-remaining: 990; anthropic-ratelimit-tokens-reset: 2026-03-10T12:00:01Z",
		},
		{
			"whole already", []limit{{policy.Tokens, ratelimit.View{Limit: 10, Remaining: 10}}},
			"x-ratelimit-limit-tokens: 10; x-ratelimit-remaining-tokens: 10; x-ratelimit-reset-tokens: 0s",
			"anthropic-ratelimit-tokens-limit: 10; anthropic-ratelimit-tokens-remaining: 10; anthropic-ratelimit-tokens-reset: 2026-03-10T12:00:01Z",
		},
		{
			"the tightest of its dimension, ties to the later reset",
			[]limit{
				{policy.Requests, ratelimit.View{Limit: 100, Remaining: 7, Reset: time.Minute}}, {policy.Requests, ratelimit.View{Limit: 5000, Remaining: 7, Reset: 6 * time.Minute}},
				{policy.Requests, ratelimit.View{Limit: 8, Remaining: 8, Reset: time.Hour}},
			},
			"x-ratelimit-limit-requests: 5000; x-ratelimit-remaining-requests: 7; x-ratelimit-reset-requests: 6m0s",
			"anthropic-ratelimit-requests-limit: 5000; anthropic-ratelimit-requests-remaining: 7; anthropic-ratelimit-requests-reset: 2026-03-10T12:06:01Z",
		},
		{
			"input and output apart",
			[]limit{
				{policy.InputTokens, ratelimit.View{Limit: 900, Remaining: 500, Reset: 10 * time.Second}}, {policy.OutputTokens, ratelimit.View{Limit: 300, Remaining: 200, Reset: 20 * time.Second}},
				{policy.Tokens, ratelimit.View{Limit: 2000, Remaining: 1000, Reset: 30 * time.Second}},
			},
			"x-ratelimit-limit-tokens: 300; x-ratelimit-remaining-tokens: 200; x-ratelimit-reset-tokens: 20s",
			"anthropic-ratelimit-input-tokens-limit: 900; anthropic-ratelimit-input-tokens-remaining: 500; anthropic-ratelimit-input-tokens-reset: 2026-03-10T12:00:11Z; " +
				"anthropic-ratelimit-output-tokens-limit: 300; anthropic-ratelimit-output-tokens-remaining: 200; anthropic-ratelimit-output-tokens-reset: 2026-03-10T12:00:21Z; " +
				"anthropic-ratelimit-tokens-limit: 300; anthropic-ratelimit-tokens-remaining: 200; anthropic-ratelimit-tokens-reset: 2026-03-10T12:00:21Z",
		},
		{
			"a debt", []limit{{policy.Requests, ratelimit.View{Limit: 60, Remaining: -5, Reset: 90*time.Minute + time.Millisecond}}},
			"x-ratelimit-limit-requests: 60; x-ratelimit-remaining-requests: 0; x-ratelimit-reset-requests: 1h30m1s",
			"anthropic-ratelimit-requests-limit: 60; anthropic-ratelimit-requests-remaining: 0; anthropic-ratelimit-requests-reset: 2026-03-10T13:30:01Z",
		},
		{
			"a debt for ever", []limit{{policy.Requests, ratelimit.View{Limit: 1, Reset: ratelimit.Never - 1}}},
			"x-ratelimit-limit-requests: 1; x-ratelimit-remaining-requests: 0; x-ratelimit-reset-requests: 876000h0m0s",
			"anthropic-ratelimit-requests-limit: 1; anthropic-ratelimit-requests-remaining: 0; anthropic-ratelimit-requests-reset: 2126-02-14T12:00:01Z",
		},
	} {
		for d, want := range map[dialect]string{dialectOpenAI: c.openai, dialectAnthropic: c.anthropic} {
			var shown limitViews
			for _, l := range c.limits {
				shown.add(l.unit, l.view)
			}
			var h fasthttp.ResponseHeader
			h.SetNoDefaultContentType(true)
			shown.write(&h, d, now)
			var got []string
			for name, value := range h.All() {
				if name := strings.ToLower(string(name)); strings.Contains(name, "ratelimit") {
					got = append(got, name+": "+string(value))
				}
			}
			slices.Sort(got)
			if got := strings.Join(got, "; "); got != want {
				t.Errorf("%s, %s:\n got %s\nwant %s", c.name, d, got, want)
			}
		}
	}
}

// limitHeaders are the rate limit headers of an answer, by name.
func limitHeaders(h http.Header) map[string]string {
	out := make(map[string]string)
	for name := range h {
		if lower := strings.ToLower(name); strings.Contains(lower, "ratelimit") {
			out[strings.TrimPrefix(lower, "x-ratelimit-")] = h.Get(name)
		}
	}
	return out
}

// TestLimitHeadersAreThoseAtCommit: what others have used between a request's
// reservation and its answer shows in its headers; a later answer shows the charge
// in place of the estimate; and refusals other than a 429 show nothing.
func TestLimitHeadersAreThoseAtCommit(t *testing.T) {
	begin, end := make(chan struct{}), make(chan struct{})
	worker := gatewaytest.NewWorker(t,
		func(x *gatewaytest.Exchange) {
			x.StreamHead()
			x.Wait(begin)
			x.Chunk(gatewaytest.ContentEvent("a", "stop"))
			x.Wait(end)
			x.Chunk(gatewaytest.UsageEvent(gatewaytest.Usage(10, 1)))
			x.Chunk(gatewaytest.DoneEvent)
			x.End()
		},
		gatewaytest.Chat("a", "b"), gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	r.limitsOf(t, bound("p", "Deny", `
  limits:
    - { name: rpd, unit: requests, window: day, limit: 10, key: [] }
    - { name: tpd, unit: tokens, window: day, limit: 1000, key: [], estimate: 100 }
`))
	first := r.chat(streamBody)
	worker.Next(t)
	second, _ := r.chat(chatBody).Answer()
	want := func(name string, h http.Header, requests, tokens int64) {
		t.Helper()
		got := limitHeaders(h)
		delete(got, "reset-requests")
		delete(got, "reset-tokens")
		if want := map[string]string{"limit-requests": "10", "remaining-requests": fmt.Sprint(requests), "limit-tokens": "1000", "remaining-tokens": fmt.Sprint(tokens)}; !maps.Equal(got, want) {
			t.Errorf("%s has %v, want %v", name, got, want)
		}
	}
	want("the second, which holds its estimate", second.Header, 8, 800)
	eventually(t, "the second to be settled", func() bool { return r.g.InFlight() == 1 })
	close(begin)
	want("the first, which began before", first.Head().Header, 8, 1000-100-12)
	close(end)
	r.idle()
	third, _ := r.chat(chatBody).Answer()
	want("the third", third.Header, 7, 1000-11-12-100)
	r.idle()
	unknown, _ := r.chat(strings.Replace(chatBody, `"m"`, `"nobody"`, 1)).Answer()
	if got := limitHeaders(unknown.Header); unknown.StatusCode != 404 || len(got) != 0 {
		t.Errorf("a 404 has %v", got)
	}
}
