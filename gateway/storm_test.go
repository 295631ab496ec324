package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// oneWord is a Classifier that expects bodies made of one word many times over, twice
// in a row: memory that was given away too early holds another's.
type oneWord struct {
	t     *testing.T
	word  *regexp.Regexp
	scans atomic.Int64
}

// Classify implements Classifier.
func (o *oneWord) Classify(_ context.Context, r *ClassifyRequest) policy.Content {
	o.scans.Add(1)
	for range 2 {
		words := o.word.FindAllString(string(r.Body), -1)
		for _, w := range words {
			if w != words[0] {
				o.t.Errorf("a body holds %s and %s", words[0], w)
				return policy.Content{ScanStatus: "unavailable"}
			}
		}
		if len(words) != 100 {
			o.t.Errorf("a body holds %d words, want 100", len(words))
		}
		runtime.Gosched()
	}
	return policy.Content{ScanStatus: "complete", Labels: []string{"pii"}}
}

// TestStorm mixes answers, streams, denials, refusals of limits and clients that leave
// with reloads, while bindings of all modes judge, scan and limit: each decision is
// noted once, settled once if it was let in, rehearsed or counted as left out, and
// nothing is left anywhere.
func TestStorm(t *testing.T) {
	const policies = `
  validations:
    - { name: no-odd, expression: "request.user.orValue('') != 'odd'" }
  limits:
    - { name: slots, unit: concurrency, limit: 6, key: [] }
    - { name: tokens, unit: tokens, window: 1s, limit: 100000, key: [], estimate: 50, charge: "usage.input_tokens + usage.output_tokens" }
`
	const scans = `
    - { name: pii, unit: requests, window: 1s, limit: 1, key: [], when: "'pii' in content.labels" }
`
	set := bound("live", "Deny", policies) + bound("warns", "Warn", policies) + bound("shadow", "Audit", policies+scans[1:])
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	scan, log := &oneWord{t: t, word: regexp.MustCompile(`w[0-9]+w`)}, &notedDecisions{}
	r := newRig(t, []string{worker.URL()}, withPolicies(t, set), withState(func(st *State) { st.Classifier = scan }),
		withParts(func(p *Parts) { p.Decisions = log }))
	script := []gatewaytest.Behaviour{gatewaytest.Chat("a", "b"), gatewaytest.Trickle(40, 0, "a", "b"), gatewaytest.Fail(500), gatewaytest.DropAfter(gatewaytest.RST, gatewaytest.RoleEvent)}
	var random []gatewaytest.Behaviour
	for range 400 {
		random = append(random, script[rand.IntN(len(script))])
	}
	worker.Script(random...)
	sets := []*policy.Set{compile(t, set), compile(t, set)}
	const clients, each = 8, 40
	var work sync.WaitGroup
	for c := range clients {
		work.Go(func() { storm(t, r, sets, c*each, each) })
	}
	work.Wait()
	r.idle()
	eventually(t, "the connections to end", func() bool { return r.g.Connections() == 0 })
	log.mu.Lock()
	defer log.mu.Unlock()
	decided, allowed, rehearsed, settled := 0, 0, 0, 0
	for _, line := range log.lines {
		switch {
		case strings.HasPrefix(line, "allow"):
			decided++
			allowed++
		case strings.HasPrefix(line, "deny"):
			decided++
		case strings.HasPrefix(line, "would"):
			rehearsed++
		default:
			settled++
		}
	}
	if skipped := int(r.meter.skipped.Load()); len(log.ids) != decided || settled != allowed || rehearsed+skipped != decided {
		t.Errorf("%d decisions with %d ids, %d let in and %d settled, %d rehearsed and %d left out", decided, len(log.ids), allowed, settled, rehearsed, skipped)
	}
	if rows := len(r.ledger.all()); rows < decided || rows > clients*each {
		t.Errorf("%d rows of %d requests, %d of them decided", rows, clients*each, decided)
	}
	if scan.scans.Load() == 0 || allowed == 0 || allowed == decided {
		t.Errorf("the mix was one-sided: %d scans, %d of %d let in", scan.scans.Load(), allowed, decided)
	}
}

// storm sends n requests of different kinds, each in words of its own, and has a new
// generation every few.
func storm(t *testing.T, r *rig, sets []*policy.Set, first, n int) {
	for i := first; i < first+n; i++ {
		if i%4 == 0 {
			st := *r.g.State()
			st.Policies, st.Generation = sets[i/4%2], st.Generation+1
			r.g.Swap(&st)
		}
		more := ""
		if i%7 == 0 {
			more = `,"user":"odd"`
		}
		if i%2 == 0 {
			more += `,"stream":true`
		}
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s"}]%s}`, strings.Repeat(fmt.Sprintf("w%dw ", i), 100), more)
		c := r.chat(body)
		if i%5 == 0 {
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond) // so that clients leave at any moment
			c.Leave(gatewaytest.RST)
			continue
		}
		resp, text := c.Answer()
		switch resp.StatusCode {
		case http.StatusOK, http.StatusBadGateway, http.StatusTooManyRequests:
		case http.StatusForbidden:
			if i%7 != 0 {
				t.Errorf("request %d got %d %s", i, resp.StatusCode, text)
			}
		default:
			t.Errorf("request %d got %d %s", i, resp.StatusCode, text)
		}
		c.Leave(gatewaytest.FIN)
	}
}
