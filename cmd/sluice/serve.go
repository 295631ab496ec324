package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func newServeCommand() *cobra.Command {
	var configFile string
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the gateway",
		Long: "Run the gateway until SIGTERM or SIGINT, then drain: running requests go on until drain.deadline.\n" +
			"A second signal ends the process at once.",
		Args: cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			cfg, warnings, err := LoadConfig(configFile)
			if err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), cfg.Log)
			for _, w := range warnings {
				log.Warn("configuration", "file", w.File, "line", w.Line, "path", w.Path, "warning", w.Text)
			}
			ctx, stop := onSignals(cmd.Context(), log)
			defer stop()
			return run(ctx, cfg, log)
		}),
	}
	addConfigFlag(cmd, &configFile)
	return cmd
}

// addConfigFlag gives cmd the required flag that names the configuration file.
func addConfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration file")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic("BUG: " + err.Error())
	}
}

// onSignals returns a context that ends at the first SIGTERM or SIGINT. A second one ends the process
// with code 1, whatever is still running. stop waits for nothing and leaves no goroutine behind.
func onSignals(parent context.Context, log *slog.Logger) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	done := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for n := 0; ; n++ {
			select {
			case s := <-signals:
				if n > 0 {
					log.Error("second signal, ending at once", "signal", s.String())
					os.Exit(exitFailed)
				}
				log.Info("signal, draining", "signal", s.String())
				cancel()
			case <-done:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		<-finished
		cancel()
	}
}

// newLogger returns the process's log.
func newLogger(w io.Writer, cfg LogConfig) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	opts := &slog.HandlerOptions{Level: levels[cfg.Level]}
	if cfg.Format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}
