package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// accounts are what the workers say of the requests that they served, by the
// id of the request's row: a worker gets that with the number of the attempt.
type accounts struct {
	mu sync.Mutex // protects of
	of map[string][]simworker.Account
}

func newAccounts() *accounts { return &accounts{of: make(map[string][]simworker.Account)} }

// watch has a worker tell of its requests.
func (a *accounts) watch(w *simworker.Config) { w.Account = a.add }

func (a *accounts) add(w simworker.Account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := w.RequestID
	if i := strings.LastIndexByte(id, '-'); i > 0 {
		id = id[:i]
	}
	a.of[id] = append(a.of[id], w)
}

func (a *accounts) all() map[string][]simworker.Account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.of)
}

// books holds three accounts of the same requests against each other: what
// clients were told, what workers counted, and what the ledger has.
type books struct {
	t       testing.TB
	askers  []*askers
	workers *accounts
	// exact says that the gateway counts prompts as the workers do, which it does
	// with a tokenizer that it has compared with theirs.
	exact bool
	// calm says that no gateway has died: refusals are all booked then, and every
	// request is known to the end.
	calm bool
	// budgets are how many budgets a completed request is charged to.
	budgets int
	// seen counts rows by outcome, and answers by what clients were told.
	seen map[string]int
}

// check reconciles all that is in a ledger. Nothing may be in flight.
func (b *books) check(reader *ledger.Reader) {
	b.t.Helper()
	b.seen = make(map[string]int)
	served := b.workers.all()
	byID, byRequest := make(map[string]*tenancy.Row), make(map[string]*tenancy.Row)
	sums, charged := make(map[string]*tenancy.Totals), make(map[budgetOf]int64)
	from, to := time.Now().AddDate(0, 0, -2), time.Now().AddDate(0, 0, 2)
	for row, err := range reader.Rows(context.Background(), from, to) {
		if err != nil {
			b.t.Fatal(err)
		}
		if byID[row.ID] != nil || byRequest[row.RequestID] != nil {
			b.t.Errorf("request %s (%s) has two rows", row.RequestID, row.ID)
		}
		byID[row.ID], byRequest[row.RequestID] = row, row
		b.seen["row "+string(row.Outcome)]++
		if sums[row.Currency] == nil {
			sums[row.Currency] = &tenancy.Totals{Currency: row.Currency}
		}
		sums[row.Currency].Add(row)
		for _, c := range row.Charges {
			charged[budgetOf{c.Counter, c.Period.Unix()}] += c.Amount
		}
		b.row(row, served[row.ID])
	}
	for id, did := range served {
		if byID[id] == nil {
			b.t.Errorf("a worker served request %s, %+v, and it has no row", id, did)
		}
	}
	asked := 0
	for _, a := range b.askers {
		a.mu.Lock()
		for id, got := range a.heard {
			b.answer(id, got, byRequest[id], served)
		}
		asked += len(a.heard)
		a.mu.Unlock()
	}
	if len(byID) > asked {
		b.t.Errorf("%d requests have %d rows", asked, len(byID))
	}
	b.totals(reader, from, to, sums)
	b.export(reader, sums)
	b.used(reader, charged)
}

// budgetOf is a budget in one day or month.
type budgetOf struct {
	counter [16]byte
	period  int64
}

// used compares what the ledger says is used of budgets, from which a gateway begins,
// with what its rows were charged.
func (b *books) used(reader *ledger.Reader, charged map[budgetOf]int64) {
	b.t.Helper()
	budgets, err := reader.Budgets(context.Background(), time.Now().AddDate(0, -2, 0))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, got := range budgets {
		if want := charged[budgetOf{got.Counter, got.Period.Unix()}]; got.Amount != want {
			b.t.Errorf("of the budget of %s by %s %d are used, rows were charged %d", got.Unit, got.Window, got.Amount, want)
		}
	}
	if len(budgets) != len(charged) {
		b.t.Errorf("the ledger has %d budgets, its rows were charged to %d", len(budgets), len(charged))
	}
}

// row holds a row against what workers did for it.
func (b *books) row(row *tenancy.Row, did []simworker.Account) {
	b.t.Helper()
	if err := row.Check(); err != nil {
		b.t.Error(err)
	}
	for _, m := range row.Meters() {
		if want := halfUp(m.Quantity, m.Price); m.Cost != want {
			b.t.Errorf("row %s: %d of %s at %d cost %d, should be %d", row.ID, m.Quantity, m.Name, m.Price, m.Cost, want)
		}
	}
	for _, c := range row.Charges {
		want := row.InputTokens + row.OutputTokens
		if c.Unit == "cost" {
			want = row.Costs.Total()
		}
		if c.Amount != want {
			b.t.Errorf("row %s was charged %d %s on a budget, should be %d", row.ID, c.Amount, c.Unit, want)
		}
	}
	if row.Outcome == tenancy.OutcomeCompleted && len(row.Charges) != b.budgets {
		b.t.Errorf("row %s was charged to %d budgets, should be to %d: %+v", row.ID, len(row.Charges), b.budgets, row.Charges)
	}
	if cutByRevocation(row) {
		b.early(row, did)
		return
	}
	switch row.Outcome {
	case tenancy.OutcomeLost, tenancy.OutcomeDenied, tenancy.OutcomeRejected:
		if row.InputTokens != 0 || row.OutputTokens != 0 || row.Costs.Total() != 0 {
			b.t.Errorf("row %s, %s, charges something: %+v", row.ID, row.Outcome, row)
		}
		if row.Outcome == tenancy.OutcomeDenied && len(did) > 0 {
			b.t.Errorf("request %s was denied, and a worker served it: %+v", row.ID, did)
		}
	case tenancy.OutcomeCompleted:
		if !sameAccount(row, did) {
			b.t.Errorf("row %s has %d input (%d cached) and %d output tokens, workers counted %+v",
				row.ID, row.InputTokens, row.CachedTokens, row.OutputTokens, did)
		}
	default:
		b.early(row, did)
	}
}

// cutByRevocation reports whether a request ended because its credential was revoked
// while it ran.
func cutByRevocation(row *tenancy.Row) bool {
	return row != nil && row.Outcome == tenancy.OutcomeRejected && row.ErrorCode == "invalid_api_key"
}

// early bounds a row of a request that ended before its answer was whole: it pays
// for nothing that no worker did.
func (b *books) early(row *tenancy.Row, did []simworker.Account) {
	b.t.Helper()
	if len(did) == 0 {
		if row.OutputTokens != 0 {
			b.t.Errorf("row %s has %d output tokens and no worker served it", row.ID, row.OutputTokens)
		}
		return
	}
	var prompt, most int64
	for _, w := range did {
		prompt, most = int64(w.Prompt), max(most, int64(w.Output))
	}
	if row.OutputTokens > most {
		b.t.Errorf("row %s, %s, has %d output tokens, workers counted %+v", row.ID, row.Outcome, row.OutputTokens, did)
	}
	if b.exact && row.InputTokens != 0 && row.InputTokens != prompt {
		b.t.Errorf("row %s, %s, has %d input tokens, workers counted %+v", row.ID, row.Outcome, row.InputTokens, did)
	}
}

// sameAccount reports whether a worker has served a request whole with the tokens
// of its row.
func sameAccount(row *tenancy.Row, did []simworker.Account) bool {
	for _, w := range did {
		if w.Whole && int64(w.Prompt) == row.InputTokens && int64(w.Cached) == row.CachedTokens && int64(w.Output) == row.OutputTokens {
			return true
		}
	}
	return false
}

// halfUp is the cost of tokens in micro-units at a price for a million.
func halfUp(tokens, price int64) int64 {
	n := new(big.Int).Mul(big.NewInt(tokens), big.NewInt(price))
	n.Add(n, big.NewInt(500_000))
	return n.Quo(n, big.NewInt(1_000_000)).Int64()
}

// answer holds what a client was told against the row of its request, which may
// be none.
func (b *books) answer(id string, got told, row *tenancy.Row, served map[string][]simworker.Account) {
	b.t.Helper()
	b.seen["told "+got.word()]++
	switch {
	case got.status == 200 && got.whole:
		b.whole(id, got, row)
	case got.status == 401 || got.failed && cutByRevocation(row):
		if row != nil && !cutByRevocation(row) {
			b.t.Errorf("request %s has a row although nobody knows whose it is: %+v", id, row)
		}
	case got.status == 403 || got.status == 404 || got.status == 429:
		switch {
		case row == nil && b.calm:
			b.t.Errorf("request %s was answered with %d and has no row", id, got.status)
		case row == nil:
			b.seen["refusals without a row"]++
		case row.Status != got.status || row.Attempts != 0:
			b.t.Errorf("request %s was answered with %d, its row says %d after %d attempts", id, got.status, row.Status, row.Attempts)
		}
	case got.status == 503:
		if row != nil && (row.Status != 503 || row.InputTokens+row.OutputTokens != 0) {
			b.t.Errorf("request %s was not taken on, its row is %+v", id, row)
		}
	case got.status == 502, got.status == 504, got.failed:
		if row == nil || row.Outcome != tenancy.OutcomeUpstreamError {
			b.t.Errorf("request %s failed before its client's eyes (%d), its row is %+v", id, got.status, row)
		}
	case got.left:
		if row != nil && got.events > 0 && row.Outcome != tenancy.OutcomeLost && row.OutputTokens < int64(got.events) {
			b.t.Errorf("request %s: its client read %d events and left, its row has %d output tokens", id, got.events, row.OutputTokens)
		}
		if row == nil && b.calm && got.status != 0 {
			b.t.Errorf("request %s was being answered when its client left, and has no row", id)
		}
	case b.calm:
		b.t.Errorf("request %s (%s) got %+v, its row is %+v", id, got.kind, got, row)
	}
}

// whole checks what matters most: an answer that came whole is booked as what it
// was.
func (b *books) whole(id string, got told, row *tenancy.Row) {
	b.t.Helper()
	switch {
	case row == nil:
		b.t.Errorf("request %s (%s) was answered whole and has no row", id, got.kind)
	case row.Outcome != tenancy.OutcomeCompleted || row.Status != 200:
		b.t.Errorf("request %s (%s) was answered whole, its row says %s, %d", id, got.kind, row.Outcome, row.Status)
	case row.Flags.Has(tenancy.FlagEstimated):
		b.t.Errorf("request %s (%s) was answered whole, its row is an estimate", id, got.kind)
	case got.usage != nil && (int64(got.usage.Prompt) != row.InputTokens || int64(got.usage.Completion) != row.OutputTokens || int64(got.usage.Details.Cached) != row.CachedTokens):
		b.t.Errorf("request %s: its client was told %+v, its row has %d (%d cached) and %d", id, *got.usage, row.InputTokens, row.CachedTokens, row.OutputTokens)
	}
}

// word is what became of a request in its client's eyes.
func (t told) word() string {
	switch {
	case t.whole && t.status == 200:
		return "whole"
	case t.failed:
		return "an error in a stream"
	case t.left:
		return "left"
	case t.status == 0 || t.status == 200:
		return "cut off"
	}
	return fmt.Sprint(t.status)
}

// totals compares the sums that the database computes with those of the rows.
func (b *books) totals(reader *ledger.Reader, from, to time.Time, sums map[string]*tenancy.Totals) {
	b.t.Helper()
	totals, err := reader.Totals(context.Background(), from, to)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, got := range totals {
		if sums[got.Currency] == nil || got != *sums[got.Currency] {
			b.t.Errorf("the database sums up %+v, its rows are %+v", got, sums[got.Currency])
		}
	}
	if len(totals) != len(sums) {
		b.t.Errorf("the database knows %d currencies, its rows have %d", len(totals), len(sums))
	}
}

// export compares the export's sums with those of the rows, over the months in
// which there are any.
func (b *books) export(reader *ledger.Reader, sums map[string]*tenancy.Totals) {
	b.t.Helper()
	now := time.Now().UTC()
	months := map[string]bool{now.AddDate(0, 0, -1).Format("2006-01"): true, now.Format("2006-01"): true}
	var tokens int64
	cost := new(big.Rat)
	for month := range months {
		var file bytes.Buffer
		if err := chargeback.Export(context.Background(), reader, month, chargeback.DefaultTerms(), chargeback.PeriodOpen, &file); err != nil {
			b.t.Fatal(err)
		}
		_, n, c, err := sumExport(file.Bytes())
		if err != nil {
			b.t.Fatal(err)
		}
		tokens += n
		cost.Add(cost, c)
	}
	var wantTokens, wantCost int64
	for _, s := range sums {
		wantTokens += s.InputTokens + s.OutputTokens
		wantCost += s.Costs.Total()
	}
	if tokens != wantTokens || cost.Cmp(big.NewRat(wantCost, 1_000_000)) != 0 {
		b.t.Errorf("the export has %d tokens for %s, the ledger %d for %d micro-units", tokens, cost.FloatString(6), wantTokens, wantCost)
	}
}
