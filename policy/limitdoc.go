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
}

func decodeLimits(p *problems, n node, names ruleNames) []limitDoc {
	if n.n == nil {
		return nil
	}
	var out []limitDoc
	for _, e := range n.listMax(p, maxLimits) {
		f := e.fields(p, "name", "when", "unit", "window", "limit", "key", "estimate", "charge", "onStoreError")
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
		out = append(out, d)
	}
	return out
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
