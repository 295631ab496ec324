package decisionlog

import (
	"context"
	"fmt"
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
		for i := range 5 {
			if !l.queue.put(decisionKind, recordLine(fmt.Sprint(i), 100)) {
				t.Errorf("record %d found no room", i)
			}
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
		if s := l.Stats(); s.Written.Decision != 5 || s.Queued != 0 || s.Failing || !l.Ready() {
			t.Errorf("with room: %+v, ready %v", s, l.Ready())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got, want := summary(readLines(t, l.cfg.Path)), "decision:0 decision:1 decision:2 decision:3 decision:4"; got != want {
			t.Errorf("lines %s, want %s", got, want)
		}
	})
}
