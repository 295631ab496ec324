package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// class is a class of service as this benchmark configures it. Times are the
// model's: those of the configuration are multiplied by the time scale.
type class struct {
	name, tier      string
	target, maxWait time.Duration
	share           float64 // of a pool's work, whatever is more urgent
}

var classes = []class{
	{"interactive", "gold", 2 * time.Second, 10 * time.Second, 0},
	{"standard", "silver", 8 * time.Second, 30 * time.Second, 0.10},
	{"batch", "bronze", time.Minute, 5 * time.Minute, 0.15},
}

// tenant is one of those that send. part is what it asks for, in parts of the
// fleet's capacity, if all ask for twice that.
type tenant struct {
	name   string
	class  int
	part   float64
	floods bool // does not come back when told: it sends on as before
}

// flooder sends thirty times as much as the others of its class.
const flooder = "standard-flood"

// tenants are twenty: eight interactive ones ask for 35 % of the capacity together,
// six standard ones for 15 % and a flooding one for 75 %, five batch ones for 75 %.
func tenants() []tenant {
	var out []tenant
	add := func(name string, class, n int, sum float64) {
		for i := range n {
			out = append(out, tenant{name: fmt.Sprintf("%s-%d", name, i+1), class: class, part: sum / float64(n)})
		}
	}
	add("interactive", 0, 8, 0.35)
	add("standard", 1, 6, 0.15)
	out = append(out, tenant{name: flooder, class: 1, part: 0.75, floods: true})
	add("batch", 2, 5, 0.75)
	return out
}

// parts is what tenants ask for together.
func parts(all []tenant) float64 {
	sum := 0.0
	for i := range all {
		sum += all[i].part
	}
	return sum
}

// yardsticks are the tenants of the closed loop, all in the most urgent class.
const yardsticks = 20

func yardstick(i int) string { return fmt.Sprintf("yardstick-%d", i%yardsticks+1) }

// directory is the tenants file.
func directory() (text string, names []string) {
	var sb strings.Builder
	sb.WriteString("tenants:\n")
	add := func(name, tier string) {
		fmt.Fprintf(&sb, "  - id: %s\n    team: bench\n    tier: %s\n", name, tier)
		names = append(names, name)
	}
	for _, t := range tenants() {
		add(t.name, classes[t.class].tier)
	}
	for i := range yardsticks {
		add(yardstick(i), classes[0].tier)
	}
	return sb.String(), names
}

// arrival is one request and when it first comes.
type arrival struct {
	at             time.Duration // from the start, real time
	tenant         *tenant
	prompt, output int // tokens, the template's left out
	body           []byte
}

// outputCost is what a token of an answer counts, in tokens of a prompt. All
// tenants send the same kind of requests, so no share depends on it.
const outputCost = 4

// work is the tokens of work that the request stands for.
func (a *arrival) work() float64 { return float64(a.prompt + outputCost*a.output) }

// Requests have 100 to 2,000 tokens that nobody else has, and 64 to 512 in answer.
const (
	promptLeast, promptMost = 100, 2000
	outputLeast, outputMost = 64, 512
)

const meanWork = (promptLeast+promptMost)/2.0 + outputCost*(outputLeast+outputMost)/2.0

// draw makes one request.
func draw(words *rig.Words, rng *rand.Rand) arrival {
	a := arrival{prompt: promptLeast + rng.IntN(promptMost-promptLeast+1), output: outputLeast + rng.IntN(outputMost-outputLeast+1)}
	a.body = words.Body(a.output, rig.Message{Role: "user", Content: words.Text(1, rng.Uint64(), a.prompt)})
	return a
}

// arrivals are the requests of all tenants for a time, in order: Poisson processes
// whose rates add up to factor times what twice capacity (work a second) asks for.
// What one tenant sends, and when, does not depend on the others.
func arrivals(words *rig.Words, all []tenant, capacity, factor float64, length time.Duration, seed uint64) []arrival {
	var out []arrival
	for i := range all {
		t := &all[i]
		name := uint64(0)
		for _, b := range []byte(t.name) {
			name = name*131 + uint64(b)
		}
		rng := rand.New(rand.NewPCG(seed, name))
		rate := t.part * factor * capacity / meanWork
		for at := 0.0; ; {
			at += rng.ExpFloat64() / rate
			if at >= length.Seconds() {
				break
			}
			a := draw(words, rng)
			a.at, a.tenant = time.Duration(at*float64(time.Second)), t
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return out
}
