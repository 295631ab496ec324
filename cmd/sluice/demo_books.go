package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// chargeback compares three accounts of all that was asked: what the workers
// counted, what the ledger holds, and what the export says, each read on its
// own.
func (t *tour) chargeback(ctx context.Context) (string, error) {
	reader, err := booksReader(ctx, &t.a.cfg.Ledger)
	if err != nil {
		return "", err
	}
	defer reader.Close()
	// Rows of what was refused come in their own time, also between two readings.
	books, err := reader.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	defer books.Close()
	now := time.Now().UTC()
	from := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	to := from.AddDate(0, 1, 0)
	var booked tenancy.Totals
	for row, err := range books.Rows(ctx, from, to) {
		if err != nil {
			return "", err
		}
		booked.Add(row)
	}
	prompt, cached, output := totals(t.d.workers)
	if booked.InputTokens != prompt || booked.CachedTokens != cached || booked.OutputTokens != output {
		return "", fmt.Errorf("the ledger has %d input (%d cached) and %d output tokens, the workers counted %d (%d) and %d",
			booked.InputTokens, booked.CachedTokens, booked.OutputTokens, prompt, cached, output)
	}
	var file bytes.Buffer
	if err := chargeback.Export(ctx, books, from.Format("2006-01"), chargeback.DefaultTerms(), chargeback.PeriodOpen, &file); err != nil {
		return "", err
	}
	lines, tokens, cost, err := sumExport(file.Bytes())
	if err != nil {
		return "", err
	}
	if tokens != booked.InputTokens+booked.OutputTokens {
		return "", fmt.Errorf("the export has %d tokens, the ledger %d", tokens, booked.InputTokens+booked.OutputTokens)
	}
	if want := big.NewRat(booked.Costs.Total(), 1_000_000); cost.Cmp(want) != 0 {
		return "", fmt.Errorf("the export comes to %s, the ledger to %s", cost.FloatString(6), want.FloatString(6))
	}
	if booked.Costs.Total() == 0 {
		return "", errors.New("nothing cost anything")
	}
	return fmt.Sprintf("%d rows, %d + %d tokens: workers = ledger = export (%s of %d lines)",
		booked.Rows, booked.InputTokens, booked.OutputTokens, cost.FloatString(6)+" EUR", lines), nil
}

// sumExport adds up an export's lines by itself.
func sumExport(text []byte) (lines int, tokens int64, cost *big.Rat, err error) {
	records, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil || len(records) == 0 {
		return 0, 0, nil, fmt.Errorf("the export is no CSV: %w", err)
	}
	column := make(map[string]int)
	for i, name := range records[0] {
		column[name] = i
	}
	cost = new(big.Rat)
	for _, r := range records[1:] {
		if r[column["SkuMeter"]] == tenancy.MeterGPU {
			continue // of no tokens, and without a price here
		}
		var quantity big.Rat
		if _, ok := quantity.SetString(r[column["ConsumedQuantity"]]); !ok || !quantity.IsInt() && r[column["ConsumedUnit"]] == "Tokens" {
			return 0, 0, nil, fmt.Errorf("ConsumedQuantity %q is no whole number", r[column["ConsumedQuantity"]])
		}
		if r[column["ConsumedUnit"]] == "Tokens" {
			tokens += quantity.Num().Int64()
		}
		var amount big.Rat
		if _, ok := amount.SetString(r[column["BilledCost"]]); !ok {
			return 0, 0, nil, fmt.Errorf("BilledCost %q is no number", r[column["BilledCost"]])
		}
		cost.Add(cost, &amount)
	}
	return len(records) - 1, tokens, cost, nil
}
