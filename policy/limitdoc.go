package policy

import (
	"strconv"
	"time"
)

// limitDoc is a decoded entry of limits.
type limitDoc struct {
	at               node
	name             string
	when             exprDoc
	unit             Unit
	window           Window
	limit            exprDoc
	key              []exprDoc
	estimate, charge exprDoc
	onStoreError     string
	currency         string  // of the unit cost; empty: whatever the models have
	warnAt           []int64 // per cent, ascending
}

func decodeLimits(p *problems, n node, names ruleNames) []limitDoc {
	if n.n == nil {
		return nil
	}
	var out []limitDoc
	for _, e := range n.listMax(p, maxLimits) {
		f := e.fields(p, "name", "when", "unit", "window", "limit", "key", "estimate", "charge", "onStoreError", "currency", "warnAt")
		d := limitDoc{
			at: e, when: exprField(p, f, "when"), estimate: exprField(p, f, "estimate"), charge: exprField(p, f, "charge"),
			onStoreError: storeDeny,
		}
		if v, ok := e.require(p, f, "name"); ok {
			d.name = names.read(p, v)
		}
		if v, ok := e.require(p, f, "unit"); ok {
			d.unit = Unit(v.oneOf(p, unitNames()...))
		}
		if v, ok := e.require(p, f, "limit"); ok {
			d.limit = v.exprDoc(p)
		}
		if v, ok := e.require(p, f, "key"); ok {
			for _, k := range v.listMax(p, maxKeyParts) {
				d.key = append(d.key, k.exprDoc(p))
			}
		}
		d.decodeWindow(p, e, f)
		if v, ok := f["onStoreError"]; ok {
			d.onStoreError = v.oneOf(p, storeDeny, "Allow", "Local")
		}
		d.decodeCurrency(p, f)
		d.decodeWarnAt(p, f)
		out = append(out, d)
	}
	return out
}

// maxWarnAt bounds the thresholds of a limit.
const maxWarnAt = 8

// decodeWarnAt reads at which per cents of the limit a warning is given.
func (d *limitDoc) decodeWarnAt(p *problems, f map[string]node) {
	v, ok := f["warnAt"]
	if !ok {
		return
	}
	if d.unit == Concurrency {
		v.errorf(p, "a concurrency limit has no warnAt: slots come and go")
		return
	}
	for _, e := range v.listMax(p, maxWarnAt) {
		n := e.integer(p)
		switch last := len(d.warnAt) - 1; {
		case n < 1 || n > 100:
			e.errorf(p, "%d is no percentage: give 1 to 100", n)
		case last >= 0 && n <= d.warnAt[last]:
			e.errorf(p, "the percentages should ascend: %d comes after %d", n, d.warnAt[last])
		default:
			d.warnAt = append(d.warnAt, n)
		}
	}
}

// decodeCurrency reads the one currency that a cost limit adds up.
func (d *limitDoc) decodeCurrency(p *problems, f map[string]node) {
	v, ok := f["currency"]
	if !ok {
		return
	}
	if d.unit != Cost && d.unit != "" {
		v.errorf(p, "a limit in %s has no currency: only one in cost does", d.unit)
		return
	}
	s := v.str(p)
	if !isCurrency(s) {
		v.errorf(p, "the currency should be a code of three capital letters, like USD")
		return
	}
	d.currency = s
}

func isCurrency(s string) bool {
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return len(s) == 3
}

func unitNames() []string {
	return []string{string(Requests), string(InputTokens), string(OutputTokens), string(Tokens), string(Cost), string(Concurrency)}
}

// decodeWindow reads the window, which every unit but concurrency has.
func (d *limitDoc) decodeWindow(p *problems, e node, f map[string]node) {
	w, has := f["window"]
	if d.unit == Concurrency {
		for _, name := range []string{"window", "estimate", "charge"} {
			if v, ok := f[name]; ok {
				v.errorf(p, "a concurrency limit has no %s: it counts requests in flight", name)
			}
		}
		return
	}
	if !has {
		if d.unit != "" {
			e.errorf(p, "field window is missing: give 1s to 24h, day or month")
		}
		return
	}
	switch s := w.str(p); s {
	case calendarDay, calendarMon:
		d.window.Calendar = s
	default:
		d.window.Duration = w.duration(p, time.Second, 24*time.Hour)
	}
}

// duration reads a duration such as 800ms within bounds.
func (n node) duration(p *problems, least, most time.Duration) time.Duration {
	s := n.str(p)
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		n.errorf(p, "%s is no duration: write it like 800ms, 1m or 1h30m", strconv.Quote(cut(s, 80)))
		return 0
	}
	if d < least || d > most {
		n.errorf(p, "the duration is outside %s to %s", least, most)
	}
	return d
}
