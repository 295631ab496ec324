package main

import (
	"context"
	"errors"
	"log/slog"
)

// run serves until ctx ends and has drained when it returns.
func run(ctx context.Context, cfg *Config, log *slog.Logger) error {
	return errors.New("cannot serve: the gateway is not wired yet")
}
