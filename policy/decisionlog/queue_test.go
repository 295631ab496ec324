package decisionlog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/policy"
)

// TestDroppedIsTold: a record that finds no room is counted, and the next one
// that is written says how many were lost.
func TestDroppedIsTold(t *testing.T) {
	set, in := testSet(t), testInput("denied")
	l := testLog(t, func(c *Config) { c.Queue = 2 })
	d := set.Decide(t.Context(), in)
	for i := range 5 {
		if got, want := l.Decided(fmt.Sprint(i), "", testTime, in, d), i < 2; got != want {
			t.Errorf("record %d: kept %v", i, got)
		}
	}
	l.Settled("1", testTime, "completed", "a", 0, policy.Usage{}, d, nil, nil)
	if !l.Ready() {
		t.Error("without Refuse a full queue refuses requests")
	}
	w := &writer{l: l}
	w.lines, w.counts = l.queue.take(nil)
	if l.Decided("5", "", testTime, in, d) {
		t.Error("what is being written takes no room")
	}
	if !w.attempt() {
		t.Fatal(w.failure)
	}
	for _, id := range []string{"6", "7"} {
		if !l.Decided(id, "", testTime, in, d) {
			t.Error("no room after a write")
		}
	}
	finish(t, l)
	lines := readLines(t, l.cfg.Path)
	if got, want := summary(lines), "decision:0 decision:1 decision:6 decision:7"; got != want {
		t.Fatalf("lines %s, want %s", got, want)
	}
	if lines[0].Dropped != 0 || lines[2].Dropped != 5 || lines[3].Dropped != 0 || !strings.HasSuffix(lines[2].text, `,"dropped":5}`) {
		t.Errorf("%+v", lines)
	}
	if s := l.Stats(); s.Dropped != (Counts{Decision: 4, Settlement: 1}) || s.Written.Decision != 4 {
		t.Errorf("%+v", s)
	}
}

// TestRefuse: requests are refused once the queue is full, and those admitted
// before still find room for what they record.
func TestRefuse(t *testing.T) {
	set, in := testSet(t), testInput("denied")
	l := testLog(t, func(c *Config) { c.Queue, c.Refuse = 2, true })
	d := set.Decide(t.Context(), in)
	for i := range 4 {
		if got, want := l.Ready(), i < 2; got != want {
			t.Errorf("before record %d: ready %v", i, got)
		}
		if !l.Decided(fmt.Sprint(i), "", testTime, in, d) {
			t.Errorf("record %d is lost", i)
		}
	}
	if l.Decided("4", "", testTime, in, d) {
		t.Error("the queue is not bounded")
	}
	finish(t, l)
	if got := len(readLines(t, l.cfg.Path)); got != 4 {
		t.Errorf("%d records", got)
	}
	if !l.Ready() {
		t.Error("an empty queue refuses")
	}
}

func TestQueueBytes(t *testing.T) {
	q := newQueue(100, 10)
	line := []byte("{\"1234\"}\n")
	if !q.put(decisionKind, line) || q.put(decisionKind, line) {
		t.Error("9 of 10 bytes are taken: one more line does not fit")
	}
	if got, counts := q.take(nil); string(got) != string(line) || counts != [kinds]int{1} {
		t.Errorf("%q %v", got, counts)
	}
	q.written()
	if !q.put(settlementKind, []byte("{\"a line beyond the bound\"}\n")) {
		t.Error("a line larger than the queue never fits")
	}
	if got, _ := q.take(nil); string(got) != "{\"a line beyond the bound\",\"dropped\":1}\n" {
		t.Errorf("%q", got)
	}
	if !q.holds(1, 1<<20) || !q.holds(100, 10) || q.holds(2, 1<<20) {
		t.Error("holds")
	}
	q.written()
	q.close()
	if q.put(decisionKind, line) || q.holds(1, 1) {
		t.Error("a closed queue takes records")
	}
}
