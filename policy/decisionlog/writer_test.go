package decisionlog

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRunWaitsForTheDisk: Run tries again every second, and nothing that found
// room is lost meanwhile; with Refuse the gateway is not ready until then.
func TestRunWaitsForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLog(t, func(c *Config) { c.Queue, c.Refuse = 4, true })
		lift := limitedFile(t, 250)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		var put []string
		record := func() {
			id := fmt.Sprint(len(put))
			if !l.queue.put(decisionKind, recordLine(id, 100)) {
				t.Errorf("record %s found no room", id)
			}
			put = append(put, "decision:"+id)
		}
		for range 5 {
			record()
		}
		synctest.Wait()
		for l.Ready() { // how many of the five were written before the disk was full is not known
			record()
		}
		synctest.Wait()
		before := l.Stats()
		if before.Errors == 0 || before.Written.Decision > 2 || !before.Failing || l.Ready() {
			t.Errorf("with a full disk: %+v, ready %v", before, l.Ready())
		}
		time.Sleep(3*time.Second + time.Millisecond)
		synctest.Wait()
		if s := l.Stats(); s.Errors != before.Errors+3 || l.Ready() {
			t.Errorf("after three seconds: %+v, ready %v", s, l.Ready())
		}
		lift()
		time.Sleep(time.Second)
		synctest.Wait()
		if s := l.Stats(); s.Written.Decision != uint64(len(put)) || s.Queued != 0 || s.Failing || !l.Ready() {
			t.Errorf("with room: %+v, ready %v", s, l.Ready())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got, want := summary(readLines(t, l.cfg.Path)), strings.Join(put, " "); got != want {
			t.Errorf("lines %s, want %s", got, want)
		}
	})
}
