package chargeback

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Change is what a row should have been. What is nil stays as it is.
type Change struct {
	InputTokens, CachedTokens, OutputTokens, ReasoningTokens *int64
	GPUTime                                                  *time.Duration
	// Void makes everything zero: the request should not have counted.
	Void bool
	// Reason and Author are required.
	Reason, Author string
}

// Correct makes the row that, added to a row and its earlier corrections, gives
// what the row should have been, at the prices and the discount of the row. An
// error says what is wrong with the change.
func Correct(row *tenancy.Row, earlier []*tenancy.Row, change Change) (*tenancy.Row, error) {
	if row.CorrectionOf != "" {
		return nil, fmt.Errorf("row %s is a correction itself: correct row %s", row.ID, row.CorrectionOf)
	}
	if change.Reason == "" || change.Author == "" {
		return nil, errors.New("a correction has a reason and somebody who answers for it")
	}
	now, priced := *row, row
	for _, c := range earlier {
		now.InputTokens += c.InputTokens
		now.CachedTokens += c.CachedTokens
		now.OutputTokens += c.OutputTokens
		now.ReasoningTokens += c.ReasoningTokens
		now.GPUTime += c.GPUTime
		now.Costs = now.Costs.Add(c.Costs)
		if priced.Currency == "" {
			priced = c // the row of a request that counted as lost came later
		}
	}
	should := *priced
	change.apply(&should, &now)
	if should.Costs = (tenancy.Costs{}); should.Currency != "" {
		should.Costs = costs(&should)
	}
	should.ID, should.CorrectionOf = row.ID, ""
	if err := should.Check(); err != nil {
		return nil, fmt.Errorf("that can't be: %w", err)
	}
	fix := should
	fix.ID, fix.CorrectionOf = row.ID+"~"+strconv.Itoa(len(earlier)+1), row.ID
	fix.Reason, fix.Author = change.Reason, change.Author
	fix.Gateway, fix.Process, fix.Period, fix.Charges = "", "", time.Time{}, nil
	fix.Start, fix.Duration, fix.Queue, fix.TTFT = row.Start, row.Duration, 0, 0
	fix.InputTokens -= now.InputTokens
	fix.CachedTokens -= now.CachedTokens
	fix.OutputTokens -= now.OutputTokens
	fix.ReasoningTokens -= now.ReasoningTokens
	fix.GPUTime -= now.GPUTime
	fix.Costs = tenancy.Costs{
		Input: should.Costs.Input - now.Costs.Input, CachedInput: should.Costs.CachedInput - now.Costs.CachedInput,
		Output: should.Costs.Output - now.Costs.Output, Reasoning: should.Costs.Reasoning - now.Costs.Reasoning,
		GPU: should.Costs.GPU - now.Costs.GPU,
	}
	if fix.InputTokens == 0 && fix.CachedTokens == 0 && fix.OutputTokens == 0 && fix.ReasoningTokens == 0 && fix.GPUTime == 0 && fix.Costs == (tenancy.Costs{}) {
		return nil, errors.New("the row is that already: nothing to correct")
	}
	return &fix, nil
}

// apply sets the quantities of a row to those of another one and the change.
func (c *Change) apply(row, now *tenancy.Row) {
	if c.Void {
		row.InputTokens, row.CachedTokens, row.OutputTokens, row.ReasoningTokens, row.GPUTime = 0, 0, 0, 0, 0
		return
	}
	pick := func(to *int64, was int64, want *int64) {
		if *to = was; want != nil {
			*to = *want
		}
	}
	pick(&row.InputTokens, now.InputTokens, c.InputTokens)
	pick(&row.CachedTokens, now.CachedTokens, c.CachedTokens)
	pick(&row.OutputTokens, now.OutputTokens, c.OutputTokens)
	pick(&row.ReasoningTokens, now.ReasoningTokens, c.ReasoningTokens)
	if row.GPUTime = now.GPUTime; c.GPUTime != nil {
		row.GPUTime = *c.GPUTime
	}
	if c.CachedTokens != nil {
		row.Flags &^= tenancy.FlagCachedUnknown
	}
}
