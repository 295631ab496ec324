package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func newDemoCommand() *cobra.Command {
	var check bool
	opts := demoOptions{public: "127.0.0.1:8080", admin: "127.0.0.1:9090", timeScale: 1}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the whole thing on this machine, before simulated workers",
		Long: "Run a gateway before three simulated vLLM workers in two pools, with three tenants, the starter policies\n" +
			"and a ledger in a temporary folder, and print what to try. With --check it plays a scripted tour against\n" +
			"itself instead and exits 0 only if every step showed what it must.",
		Args: cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if check {
				opts.public, opts.admin = "127.0.0.1:0", "127.0.0.1:0"
			}
			return runDemo(ctx, opts, check, cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	cmd.Flags().BoolVar(&check, "check", false, "play a scripted tour and exit")
	cmd.Flags().StringVar(&opts.public, "listen", opts.public, "address for clients; a free port if it is taken")
	cmd.Flags().StringVar(&opts.admin, "admin", opts.admin, "address for metrics and debug pages; a free port if it is taken")
	cmd.Flags().Float64Var(&opts.timeScale, "time-scale", opts.timeScale, "how long the simulated GPUs take: 0.1 is ten times as fast")
	return cmd
}

// runDemo runs the demo until ctx ends, or plays the tour.
func runDemo(ctx context.Context, opts demoOptions, check bool, out, diag io.Writer) (err error) {
	log := newLogger(diag, LogConfig{Level: "warn", Format: "text"})
	opts.public, opts.admin = freeAddress(opts.public), freeAddress(opts.admin)
	opts.queue = true
	d, err := newDemo(opts, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	a, err := newApp(d.cfg, log, reloadFrom(filepath.Join(d.dir, "sluice.yaml"), nil))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	serveCtx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- a.serve(serveCtx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()
	if err := a.waitReady(ctx, len(demoWorkers)); err != nil {
		return err
	}
	if check {
		return newTour(d, a, out).play(ctx)
	}
	d.say(out, a)
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nStopping.")
		return nil
	case err := <-served:
		served <- nil
		return err
	}
}

// freeAddress is address if its port can be had, else the same host with a
// free one: a demo shouldn't fail because something else runs on 8080.
func freeAddress(address string) string {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		if host, _, serr := net.SplitHostPort(address); serr == nil {
			return net.JoinHostPort(host, "0")
		}
		return address // newApp says what is wrong with it
	}
	_ = ln.Close()
	return address
}

// demoPatience is how long the demo's workers may take to be ready.
const demoPatience = time.Minute

// waitReady waits until so many workers are ready, the local tokenizers are
// judged and every cache view has joined.
func (a *app) waitReady(ctx context.Context, workers int) error {
	deadline := time.NewTimer(demoPatience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if a.fleet.Stats().ReadyWorkers >= workers && a.tokens.judged() && a.subs.joined() >= workers {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("the workers were not ready within %v: %d of %d ready, tokenizers judged: %v, cache views joined: %d",
				demoPatience, a.fleet.Stats().ReadyWorkers, workers, a.tokens.judged(), a.subs.joined())
		case <-tick.C:
		}
	}
}
