package main

import (
	"context"
	"strconv"
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// localCounters bounds the counters of limits that are kept in this process while
// theirs can't be had.
const localCounters = 1 << 16

// LimitReached implements gateway.Meter.
func (m *metrics) LimitReached(l *policy.Limit, percent int64) {
	m.rules.limit(l.Rule, func(limit string) { m.limitThresholds.WithLabelValues(limit, strconv.FormatInt(percent, 10)).Inc() })
}

// StoreFailed implements gateway.Meter.
func (m *metrics) StoreFailed(state ratelimit.StoreState, how string) {
	m.storeFailures.WithLabelValues(string(state), how).Inc()
}

const (
	// budgetsEvery is how often the use of budgets by others is read.
	budgetsEvery = 10 * time.Second
	// budgetsTimeout ends one read.
	budgetsTimeout = 15 * time.Second
)

// restoreBudgets tells the limiter what others have used of the present budgets: the
// earlier runs of this gateway, and gateways that share its ledger.
func (a *app) restoreBudgets(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, budgetsTimeout)
	defer cancel()
	// A calendar that is led towards a wall clock that was set can be a day behind.
	since := ratelimit.PeriodStart(ratelimit.CalendarMonth, now.Add(-24*time.Hour))
	budgets, err := a.ledger.Budgets(ctx, since)
	if err != nil {
		return err
	}
	used := make([]ratelimit.Used, len(budgets))
	for i, b := range budgets {
		used[i] = ratelimit.Used{Counter: b.Counter, Period: b.Period, Amount: b.Amount}
	}
	a.limiter.Restore(used)
	if a.shared != nil {
		a.shared.Restore(used)
	}
	return nil
}

// beginBudgets reads the use of budgets before the first request. A ledger that can't
// be read does not keep the gateway from starting.
func (a *app) beginBudgets() {
	if a.shared != nil {
		return // their store outlives this process
	}
	err := a.restoreBudgets(context.Background(), time.Now())
	a.budgetsUnread.Store(err != nil)
	if err != nil {
		a.log.Error("cannot read what is used of budgets; they begin as if nothing was, until it can be read", "error", err)
	}
}

// followBudgets reads the use of budgets again and again until ctx ends. What was
// known stays known while the ledger can't be read.
func (a *app) followBudgets(ctx context.Context) {
	failing, steps := a.budgetsUnread.Load(), uint64(0)
	wait := time.NewTimer(budgetsEvery)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		began := time.Now()
		var err error
		if a.shared == nil {
			err = a.restoreBudgets(ctx, began)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			a.log.Error("cannot read what is used of budgets; what others use meanwhile is not known", "error", err)
		case err == nil && failing:
			a.log.Info("what is used of budgets can be read again")
		}
		failing = err != nil
		a.budgetsUnread.Store(failing)
		steps = a.noteClockSteps(steps)
		// However long a read takes, it takes but a small part of the time.
		wait.Reset(max(budgetsEvery, 20*time.Since(began)))
	}
}

// noteClockSteps says where the wall clock was set since the last look.
func (a *app) noteClockSteps(known uint64) uint64 {
	st := a.limiter.Stats()
	if st.ClockSteps != known {
		a.log.Warn("the wall clock was set; limits by day and month follow it by five minutes an hour, or at once after a restart",
			"by", st.ClockStep.Round(time.Second).String(), "times", st.ClockSteps)
	}
	return st.ClockSteps
}
