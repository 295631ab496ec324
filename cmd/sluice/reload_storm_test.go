package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/sluicegate/sluice/tenancy"
)

var stormTime = flag.Duration("storm", 2*time.Second, "how long TestReloadStorm reloads and streams")

const (
	stormStreams = 50
	stormEvery   = 50 * time.Millisecond // 20 a second
	stormTokens  = 40
)

// TestReloadStorm changes the policies twenty times a second, or as often as they can be loaded if that is
// less, by every cause, a third of it broken, while fifty clients stream. No request is lost, every stream is
// whole, each is judged and booked by one generation that was in force when it began, and at the end nothing
// is left but the last generation.
func TestReloadStorm(t *testing.T) {
	r := startReloading(t, func(dir string) {
		mustRemove(t, filepath.Join(dir, "policies/qos-tiers.yaml")) // whose limits would refuse
		editConfig(dir, "reload: { poll: 100ms }\n")
		write(t, dir, map[string]string{"policies/quota.yaml": quota(1_000_000, "storm-0")})
	})
	storm := &stormTest{reloading: r}
	storm.run(*stormTime/4, 0, 0) // what is made once is made here
	before := storm.resources()
	good0, failed0 := r.a.reloads.counts()
	began := time.Now()
	storm.run(*stormTime, 5, 2)
	good, failed := r.a.reloads.counts()
	rate := float64(good-good0+failed-failed0) / time.Since(began).Seconds()
	storm.checkBooks()
	storm.checkLeaks(before)
	t.Logf("%d streams; %d reloads succeeded, %d failed, %.1f a second", storm.asked.Load(), good, failed, rate)
	if good-good0 < 5 || failed-failed0 < 2 {
		t.Error("that was no storm")
	}
}

// stormTest is a storm and what it has seen.
type stormTest struct {
	*reloading
	written int // versions of the policy
	asked   atomic.Int64
	seen    []weak.Pointer[generation]
}

// run lets clients stream while files change, for a time and until so many reloads have succeeded and failed, and
// waits for all of it to end.
func (s *stormTest) run(long time.Duration, good, failed uint64) {
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	began := time.Now()
	good0, failed0 := s.a.reloads.counts()
	enough := func() bool {
		now, bad := s.a.reloads.counts()
		return now >= good0+good && bad >= failed0+failed || time.Since(began) > long+stackPatience
	}
	var wg sync.WaitGroup
	for range stormStreams {
		wg.Go(func() {
			for ctx.Err() == nil {
				s.stream()
			}
		})
	}
	tick := time.NewTicker(stormEvery)
	defer tick.Stop()
	for time.Since(began) < long || !enough() {
		s.change()
		<-tick.C
	}
	stop()
	wg.Wait()
	s.written++
	s.replace(quota(1_000_000, "calm-"+strconv.Itoa(s.written)))
	if status, page := s.reload(); status != http.StatusOK {
		s.Errorf("after the storm: %d %+v", status, page)
	}
	soon(s.T, "the requests to end", stackPatience, func() bool { return s.a.gateway.InFlight() == 0 })
	http.DefaultClient.CloseIdleConnections()
	s.tour.client.CloseIdleConnections()
}

// change writes the next version of the policy, and has it loaded in one way or another.
func (s *stormTest) change() {
	s.written++
	text := quota(1_000_000, "storm-"+strconv.Itoa(s.written))
	if s.written%3 == 0 {
		text = strings.Replace(text, "request.model_family", "request.modle_family", 1)
	}
	s.replace(text)
	switch {
	case s.written%20 == 0: // the watch alone, which waits until files rest and so sees the next change, too
	case s.written%2 == 1:
		select {
		case s.hangups <- struct{}{}:
		default:
		}
	default:
		s.reload()
	}
	s.seen = append(s.seen, weak.Make(s.a.reloads.generation()))
}

// replace puts a new file in the place of the old one, as a careful tool does.
func (s *stormTest) replace(text string) {
	write(s.T, s.d.dir, map[string]string{"next.yaml": text})
	rename(s.T, filepath.Join(s.d.dir, "next.yaml"), filepath.Join(s.d.dir, "policies/quota.yaml"))
}

// stream asks for one stream and fails the test unless it comes whole.
func (s *stormTest) stream() {
	n := s.asked.Add(1)
	body := user(fmt.Sprintf("story %d", n))
	body["stream"], body["ignore_eos"], body["max_tokens"] = true, true, stormTokens
	body["stream_options"] = map[string]any{"include_usage": true}
	got, err := s.tour.ask(s.Context(), "globex", body)
	switch {
	case err != nil:
		s.Errorf("stream %d: %v", n, err)
	case got.status != http.StatusOK:
		s.Errorf("stream %d: status %d %s", n, got.status, got.message)
	case !strings.HasSuffix(string(got.body), "data: [DONE]\n\n"):
		s.Errorf("stream %d ended with %q", n, got.body[max(0, len(got.body)-200):])
	case !strings.Contains(string(got.body), fmt.Sprintf(`"completion_tokens":%d`, stormTokens)):
		s.Errorf("stream %d has not all of its tokens", n)
	}
}

// inForce is a generation with the time in which it became the one in force.
type inForce struct {
	revision   string
	begin, end time.Time
}

var reloadedLine = regexp.MustCompile(`(?m)^time=(\S+) level=INFO msg=reloaded cause=\S+ generation=(\d+) policy=(\S+) changed=\w+ took=(\S+)$`)

// history reads from the log which generation was in force when.
func (s *stormTest) history() (list []inForce) {
	for i, m := range reloadedLine.FindAllStringSubmatch(s.log.String(), -1) {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			s.Fatal(err)
		}
		took, err := time.ParseDuration(m[4])
		if err != nil {
			s.Fatal(err)
		}
		if number, _ := strconv.Atoi(m[2]); number != i+2 {
			s.Errorf("generation %d came as number %d", number, i+2)
		}
		// The log's time is cut to milliseconds.
		list = append(list, inForce{m[3], at.Add(-took - 2*time.Millisecond), at.Add(2 * time.Millisecond)})
	}
	return list
}

// checkBooks holds the ledger to what was asked: a row for each stream, each whole, and judged by the
// generation that was in force when it began.
func (s *stormTest) checkBooks() {
	list := s.history()
	asked := int(s.asked.Load())
	all := rows(s.T, s.a)
	if len(all) != asked {
		s.Errorf("%d rows of %d streams", len(all), asked)
	}
	wrong := 0
	for _, row := range all {
		if row.Outcome != tenancy.OutcomeCompleted || row.OutputTokens != stormTokens {
			s.Errorf("row %+v", row)
		}
		if len(list) > 0 && row.Start.Before(list[0].end) {
			continue // of the generation that the gateway started with, perhaps
		}
		ok := false
		for i, g := range list {
			until := row.Start
			if i+1 < len(list) {
				until = list[i+1].end
			}
			ok = ok || g.revision == row.PolicyRevision && !row.Start.Before(g.begin) && !row.Start.After(until)
		}
		if !ok {
			wrong++
		}
	}
	if wrong > 0 {
		s.Errorf("%d rows name a revision that was not in force when they began", wrong)
	}
}

// resources is what may leak.
type resources struct {
	goroutines, files int
	heap              uint64
	series            int
}

func (s *stormTest) resources() resources {
	runtime.GC()
	runtime.GC() // what had a finaliser
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		s.Log("this system does not list open files")
	}
	series := strings.Count(metricsText(s.T, s.a), "\n")
	http.DefaultClient.CloseIdleConnections()
	logs := s.log.held() + s.secrets.Held() // the test's own, which keep a line of each request
	return resources{runtime.NumGoroutine(), len(files), m.HeapAlloc - uint64(logs), series}
}

// checkLeaks waits for everything to be as it was before the storm.
func (s *stormTest) checkLeaks(before resources) {
	var now resources
	calm := func() bool {
		now = s.resources()
		return now.goroutines <= before.goroutines+5 && now.files <= before.files+5 &&
			now.heap <= before.heap+16<<20 && now.series <= before.series+5
	}
	for start := time.Now(); !calm(); time.Sleep(50 * time.Millisecond) {
		if time.Since(start) > stackPatience {
			s.Errorf("before the storm %+v, after it %+v", before, now)
			break
		}
	}
	current, left := s.a.reloads.generation(), map[*generation]bool{}
	for _, p := range s.seen {
		if g := p.Value(); g != nil && g != current {
			left[g] = true
		}
	}
	// Memory that waits to be used again, as that of a connection's last request, may hold one each.
	if len(left) > 2 {
		s.Errorf("%d of %d generations are still in memory", len(left), len(s.seen))
	}
}
