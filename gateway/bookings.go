package gateway

import (
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/tenancy"
)

// bookReserved notes in the row what limit i of a reservation was charged, once it
// is settled, where the limit's period is a day or a month: a gateway that starts
// later takes it from there.
func (ex *exchange) bookReserved(row *tenancy.Row, now time.Time, r *reservedLimit, i int, charged int64) {
	l := &ex.limits[r.indices[i]]
	booker, ok := r.lease.(ratelimit.Booker)
	if r.local || !ok {
		ex.book(row, l, ratelimit.Booking{Period: ratelimit.PeriodStart(l.Window.Calendar, now), Amount: charged})
		return
	}
	for _, b := range booker.Bookings(i) {
		ex.book(row, l, b)
	}
}

// bookOwed is bookReserved for a limit that could not be reserved: what was used of
// it was used, whether or not its store knows by now.
func (ex *exchange) bookOwed(row *tenancy.Row, now time.Time, index int, charged int64) {
	l := &ex.limits[index]
	ex.book(row, l, ratelimit.Booking{Period: ratelimit.PeriodStart(l.Window.Calendar, now), Amount: charged})
}

// book notes a charge of a limit in the row.
func (ex *exchange) book(row *tenancy.Row, l *policy.Limit, b ratelimit.Booking) {
	if l.Window.Calendar == "" || b.Amount <= 0 {
		return
	}
	c := ex.claim(l)
	row.Charges = append(row.Charges, tenancy.Charge{
		Counter: c.ID(), Unit: string(l.Unit), Window: l.Window.Calendar, Period: b.Period, Amount: b.Amount,
	})
}
