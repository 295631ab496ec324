package main

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

func newServeCommand() *cobra.Command {
	var configFile string
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the gateway",
		Long: "Run the gateway until SIGTERM or SIGINT, then drain: running requests go on until drain.deadline.\n" +
			"A second signal ends the process at once.\n\n" +
			"A change of the policies, the tenants, the prices or the configuration is loaded when the files change, at\n" +
			"SIGHUP, and at POST /admin/reload on the admin listener: all of it or nothing. Running requests go on as they\n" +
			"began.",
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
			respectMemory(log, readOSLimits())
			ctx, hangups, stop := onSignals(cmd.Context(), log)
			defer stop()
			return run(ctx, cfg, log, reloadFrom(configFile, hangups))
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

// newLogger returns the process's log.
func newLogger(w io.Writer, cfg LogConfig) *slog.Logger {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	opts := &slog.HandlerOptions{Level: levels[cfg.Level]}
	if cfg.Format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}
