package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// onSignals returns a context that ends at the first SIGTERM or SIGINT; a second one ends the process with
// code 1, whatever is still running. Each SIGHUP asks for a reload on hangups; those that come while one is
// asked for already count once. stop waits for nothing that runs, and leaves no goroutine behind.
func onSignals(parent context.Context, log *slog.Logger) (ctx context.Context, hangups <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	asked := make(chan struct{}, 1)
	done := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		ending := false
		for {
			select {
			case s := <-signals:
				switch {
				case s == syscall.SIGHUP:
					select {
					case asked <- struct{}{}:
					default:
					}
				case ending:
					log.Error("second signal, ending at once", "signal", s.String())
					os.Exit(exitFailed)
				default:
					ending = true
					log.Info("signal, draining", "signal", s.String())
					cancel()
				}
			case <-done:
				return
			}
		}
	}()
	return ctx, asked, func() {
		signal.Stop(signals)
		close(done)
		<-finished
		cancel()
	}
}
