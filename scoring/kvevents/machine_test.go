package kvevents

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output of the transcripts")

func testMachineConfig() MachineConfig {
	return MachineConfig{
		Replay: true, QueueItems: 4, QueueBytes: 1000,
		ReplayIdle: 5 * time.Second, ReplayMax: time.Minute,
		Attempts: 4, Stable: 30 * time.Second,
		Backoff: 100 * time.Millisecond, BackoffMax: 5 * time.Second,
		StaleAfter: 30 * time.Second, Confirm: time.Second,
		Rejoin: 2 * time.Minute, RejoinMax: 10 * time.Minute,
	}
}

// TestMachineTranscripts runs testdata/machine/*.txt. A transcript is a list of
// blocks: inputs, a line "----", and the actions that came out with the state
// after them. Inputs are
//
//	config noreplay | queue=N | attempts=N
//	connect, disconnect
//	live SEQ[@TS]…       batches of the live stream; TS is SEQ if not given
//	replay SEQ[@TS]…     batches of the replay under way
//	end, fail            its end, with and without the end marker
//	wait DURATION        the clock goes on, deadlines on the way are kept
//	# …                  a comment
func TestMachineTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/machine/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runTranscript(t, string(data))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(data) {
				t.Errorf("transcript differs, run with -rewrite to see how:\n%s", got)
			}
		})
	}
}

func runTranscript(t *testing.T, text string) string {
	t.Helper()
	r := transcript{t: t, cfg: testMachineConfig(), now: time.Unix(1000, 0)}
	var out strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		input, _, _ := strings.Cut(block, "----\n")
		input = strings.TrimSuffix(input, "----")
		if out.Len() > 0 {
			out.WriteString("\n")
		}
		out.WriteString(input)
		r.out = nil
		for line := range strings.Lines(input) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				r.step(strings.Fields(line))
			}
		}
		if r.m == nil {
			continue
		}
		out.WriteString("----\n")
		for _, l := range r.out {
			out.WriteString(l + "\n")
		}
		next, known := r.m.Position()
		at := "nowhere"
		if known {
			at = strconv.FormatUint(next, 10)
		}
		fmt.Fprintf(&out, "= %v, next %s, queued %d\n", r.m.View(), at, r.m.Queued())
	}
	return out.String()
}

type transcript struct {
	t   *testing.T
	cfg MachineConfig
	m   *Machine
	now time.Time
	id  uint64
	out []string
}

func (r *transcript) step(f []string) {
	if f[0] == "config" {
		r.configure(f[1:])
		return
	}
	if r.m == nil {
		r.m = NewMachine(r.cfg)
	}
	switch f[0] {
	case "connect":
		r.take(r.m.Connected(r.now))
	case "disconnect":
		r.take(r.m.Disconnected(r.now))
	case "live":
		for _, s := range f[1:] {
			r.take(r.m.Live(r.now, r.item(s)))
		}
	case "replay":
		for _, s := range f[1:] {
			r.take(r.m.Replayed(r.now, r.id, r.item(s)))
		}
	case "end":
		r.take(r.m.ReplayEnd(r.now, r.id, true))
	case "fail":
		r.take(r.m.ReplayEnd(r.now, r.id, false))
	case "wait":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			r.t.Fatal(err)
		}
		r.wait(r.now.Add(d))
	default:
		r.t.Fatalf("unknown input %q", f)
	}
}

func (r *transcript) wait(until time.Time) {
	for {
		at, ok := r.m.Deadline()
		if !ok || at.After(until) {
			break
		}
		if at.After(r.now) {
			r.now = at
		}
		before := len(r.out)
		r.take(r.m.Tick(r.now))
		if len(r.out) == before {
			r.t.Fatalf("nothing happens at the deadline")
		}
	}
	r.now = until
}

func (r *transcript) configure(words []string) {
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		n, err := strconv.Atoi(v)
		if v != "" && err != nil {
			r.t.Fatal(err)
		}
		switch k {
		case "noreplay":
			r.cfg.Replay = false
		case "queue":
			r.cfg.QueueItems = n
		case "bytes":
			r.cfg.QueueBytes = n
		case "attempts":
			r.cfg.Attempts = n
		default:
			r.t.Fatalf("unknown setting %q", w)
		}
	}
}

func (r *transcript) item(s string) Item {
	seq, ts, ok := strings.Cut(s, "@")
	n, err := strconv.ParseUint(seq, 10, 64)
	it := Item{Seq: n, TS: float64(n), Size: 100}
	if ok && err == nil {
		it.TS, err = strconv.ParseFloat(ts, 64)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return it
}

func (r *transcript) take(actions []Action) {
	for _, a := range actions {
		var s string
		switch a.Kind {
		case ActApply:
			s = fmt.Sprintf("apply %d", a.Item.Seq)
		case ActDiscard:
			s = fmt.Sprintf("discard %d", a.Item.Seq)
		case ActClear:
			s = "clear"
		case ActAsk:
			s = fmt.Sprintf("ask from %d", a.From)
			r.id = a.ID
		case ActCancel:
			s = "cancel"
		case ActView:
			s = "view " + a.View.String()
		}
		r.out = append(r.out, s)
	}
}
