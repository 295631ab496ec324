package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sluicegate/sluice/policy/decisionlog"
)

// openDecisions opens the decision log, if there is one, and has it written until Close: after the gateway
// is closed, so that nothing that it notes comes too late.
func (a *app) openDecisions() error {
	c := &a.cfg.DecisionLog
	if !c.Enabled() {
		return nil
	}
	lc := c.log()
	var err error
	if c.HashKeyFile != "" {
		if lc.HashKey, err = readKey(c.HashKeyFile); err != nil {
			return fmt.Errorf("cannot read decisionLog.hashKeyFile: %w", err)
		}
	}
	if lc.Gateway == "" {
		if lc.Gateway, err = os.Hostname(); err != nil {
			return fmt.Errorf("cannot tell this gateway's name, give decisionLog.gateway: %w", err)
		}
	}
	if a.decisions, err = decisionlog.Open(lc, a.log); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.decisions.Run(ctx) }()
	a.onClose(func() error {
		stop()
		return <-ended
	})
	return nil
}

// decisionDetails says what is amiss with the decision log: it can't be written, whether or not requests
// are refused for it.
func (a *app) decisionDetails() (words []string) {
	if a.decisions == nil {
		return nil
	}
	if a.decisions.Stats().Failing {
		words = append(words, "decision_log_failing")
	}
	if !a.decisions.Ready() {
		words = append(words, "decision_log_full")
	}
	return words
}
