package chargeback

import (
	"time"

	"github.com/sluicegate/sluice/tenancy/strictyaml"
)

// reader reads the kinds of values that a price table has.
type reader struct{ strictyaml.Reader }

func newReader(file string) reader {
	return reader{strictyaml.Reader{File: file, KindName: kindName}}
}

// kindName tells numbers with a fraction, which no price may be, from the others.
func kindName(k strictyaml.Kind) string {
	switch k {
	case strictyaml.Float, strictyaml.NonFinite:
		return "a number with a fraction"
	case strictyaml.Anchor, strictyaml.Alias, strictyaml.Tag, strictyaml.MergeKey, strictyaml.Other:
		return "an anchor, alias or tag, which is not allowed here"
	}
	return k.String()
}

func (r *reader) text(n strictyaml.Node, what string) string {
	if n.Kind() != strictyaml.Text {
		r.FailKind(n, what, "text")
		return ""
	}
	return n.Scalar().(string)
}

// amount reads a whole number from 0 to most.
func (r *reader) amount(n strictyaml.Node, what string, most int64, unit string) int64 {
	var v uint64
	switch x := n.Scalar().(type) {
	case uint64:
		v = x
	case int64: // -0 is 0
		if x < 0 {
			r.Fail(n, "%s should not be negative", what)
			return 0
		}
	default:
		r.FailKind(n, what, "a whole number of "+unit)
		return 0
	}
	if v > uint64(most) {
		r.Fail(n, "%s should be at most %d %s", what, most, unit)
		return 0
	}
	return int64(v)
}

// instant reads a date or time, the zero time after a failure.
func (r *reader) instant(n strictyaml.Node, what string) time.Time {
	t, ok := n.Instant()
	if !ok {
		r.Fail(n, "%s should be a date like 2026-07-01 or a time like 2026-07-01T12:00:00Z", what)
	}
	return t
}
