package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

var (
	budgetMonth = tenancy.Month(time.Now())
	budgetDay   = budgetMonth.AddDate(0, 0, 9)
)

// chargedRow is a row with charges: of counter and amount.
func chargedRow(id string, charges ...int64) *tenancy.Row {
	row := fullRow(id)
	row.Charges = nil
	for i := 0; i < len(charges); i += 2 {
		row.Charges = append(row.Charges,
			tenancy.Charge{Counter: [16]byte{1, byte(charges[i])}, Unit: "cost", Window: "month", Period: budgetMonth, Amount: charges[i+1]},
			tenancy.Charge{Counter: [16]byte{2, byte(charges[i])}, Unit: "tokens", Window: "day", Period: budgetDay, Amount: 10 * charges[i+1]})
	}
	return row
}

// budgets are the sums of all processes, as month/counter=amount, in any order.
func budgets(t testing.TB, l *Ledger, since time.Time, all bool) map[string]int64 {
	t.Helper()
	read := l.Budgets
	if all {
		read = l.reader.Budgets
	}
	list, err := read(t.Context(), since)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]int64)
	for _, b := range list {
		k := fmt.Sprint(b.Window, b.Counter[1])
		if _, twice := out[k]; twice {
			t.Errorf("%s is there twice", k)
		}
		if want := map[string]string{"month": "cost", "day": "tokens"}[b.Window]; b.Unit != want {
			t.Errorf("%s has the unit %s", k, b.Unit)
		}
		out[k] = b.Amount
	}
	return out
}

func sameBudgets(t testing.TB, what string, got map[string]int64, want string) {
	t.Helper()
	n := 0
	for part := range strings.FieldsSeq(want) {
		name, amount, _ := strings.Cut(part, "=")
		n++
		if fmt.Sprint(got[name]) != amount {
			t.Errorf("%s: %v, want %s", what, got, want)
			return
		}
	}
	if n != len(got) {
		t.Errorf("%s: %v, want %s", what, got, want)
	}
}

// Charges are added up with the rows that they stand in, once for each row however
// it comes, and apart by the process that stored it.
func TestBudgetsCountEachRowOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, reopen func() *Ledger) {
		l := reopen()
		ctx := t.Context()
		if err := l.Begin(ctx, intent("lost")); err != nil {
			t.Fatal(err)
		}
		for _, row := range []*tenancy.Row{chargedRow("a", 1, 100), chargedRow("b", 1, 50, 2, 7), chargedRow("none"), chargedRow("zero", 3, 0)} {
			if err := l.Record(ctx, row); err != nil {
				t.Fatal(err)
			}
		}
		sameBudgets(t, "two rows", budgets(t, l, budgetMonth, true), "month1=150 day1=1500 month2=7 day2=70")
		sameBudgets(t, "what others have used", budgets(t, l, budgetMonth, false), "")
		if err := l.Record(ctx, chargedRow("a", 1, 100)); err != nil { // the same again
			t.Fatal(err)
		}
		if err := l.Record(ctx, chargedRow("a", 1, 1000)); err == nil { // another row with its id
			t.Error("a second row with the id was taken")
		}
		sameBudgets(t, "nothing new", budgets(t, l, budgetMonth, true), "month1=150 day1=1500 month2=7 day2=70")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}

		l = reopen()
		sameBudgets(t, "a restart", budgets(t, l, budgetMonth, false), "month1=150 day1=1500 month2=7 day2=70")
		if err := l.Record(ctx, chargedRow("lost", 2, 1)); err != nil { // in the place of the lost one
			t.Fatal(err)
		}
		for range 2 {
			if err := l.Record(ctx, chargedRow("c", 1, 5)); err != nil {
				t.Fatal(err)
			}
		}
		sameBudgets(t, "all", budgets(t, l, budgetMonth, true), "month1=155 day1=1550 month2=8 day2=80")
		sameBudgets(t, "others", budgets(t, l, budgetMonth, false), "month1=150 day1=1500 month2=7 day2=70")
		sameBudgets(t, "of budgetDay", budgets(t, l, budgetDay, true), "day1=1550 day2=80")
		sameBudgets(t, "of later", budgets(t, l, budgetDay.Add(time.Second), true), "")
	})
}

// A batch with a row that the database refuses changes no sum twice, and sums stay
// below their end.
func TestBudgetsOfBatches(t *testing.T) {
	eachStore(t, func(t *testing.T, reopen func() *Ledger) {
		l := reopen()
		most := chargedRow("most", 1, 1<<59)
		rows := []*tenancy.Row{chargedRow("a", 2, 1), chargedRow("a", 2, 1), chargedRow("b", 2, 2), most, chargedRow("more", 1, 1<<59)}
		for range 2 {
			if _, err := l.store.commit(t.Context(), rows); err != nil {
				t.Fatal(err)
			}
		}
		sameBudgets(t, "a batch", budgets(t, l, budgetMonth, true), fmt.Sprint("month1=", mostBudget, " day1=", mostBudget, " month2=3 day2=30"))
	})
}

// Sums are those of the rows, whatever is offered by whom at once.
func TestBudgetsEqualTheRows(t *testing.T) {
	dsn := database(t)
	a, b := mustOpenPostgres(t, tempPath(t), dsn, Options{}), mustOpenPostgres(t, tempPath(t), dsn, Options{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			l := []*Ledger{a, b}[w%2]
			for i := range 100 {
				id := fmt.Sprint("r", rng.IntN(150)) // the writers meet at some
				row := chargedRow(id, int64(len(id)), 1, 9, int64(len(id)))
				if err := l.Record(context.Background(), row); err != nil {
					t.Errorf("row %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	want := make(map[string]int64)
	for _, row := range collect(t, a) {
		for _, c := range row.Charges {
			want[fmt.Sprint(c.Window, c.Counter[1])] += c.Amount
		}
	}
	var text string
	for k, v := range want {
		text += fmt.Sprint(k, "=", v, " ")
	}
	sameBudgets(t, "the rows", budgets(t, a, budgetMonth, true), text)
	mine, others := budgets(t, a, budgetMonth, false), budgets(t, b, budgetMonth, false)
	for k, v := range want {
		if mine[k]+others[k] != v {
			t.Errorf("%s: the two have %d and %d of %d", k, others[k], mine[k], v)
		}
	}
}

// Sums of periods that are long over are forgotten at the next start.
func TestOldBudgetsAreForgotten(t *testing.T) {
	eachStore(t, func(t *testing.T, reopen func() *Ledger) {
		l := reopen()
		now := time.Now().UTC()
		row := chargedRow("a")
		for i, ago := range []time.Duration{budgetsFor + 48*time.Hour, 40 * 24 * time.Hour, 0} {
			row.Charges = append(row.Charges, tenancy.Charge{Counter: [16]byte{1, byte(i)}, Unit: "cost", Window: "month", Period: now.Add(-ago).Truncate(24 * time.Hour), Amount: 5})
		}
		if err := l.Record(t.Context(), row); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		sameBudgets(t, "after a start", budgets(t, reopen(), time.Unix(0, 0), true), "month1=5 month2=5")
	})
}
