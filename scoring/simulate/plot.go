package simulate

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// The plot's size and margins, in pixels.
const (
	plotWidth, plotHeight = 900, 520
	plotLeft, plotRight   = 70, 190
	plotTop, plotBottom   = 50, 60
	plotPoints            = 400 // of a curve, at most
)

// colours are Okabe and Ito's, which the colour-blind can tell apart (Color
// Universal Design, 2008). Dashes tell curves apart in black and white.
var (
	colours = [...]string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#000000", "#56b4e9"}
	dashes  = [...]string{"", "8 3", "2 3", "8 3 2 3", "12 4", "5 2", "1 2"}
)

// plot is a drawing of the distributions of TTFT: the share of requests (up)
// whose first token came within a time (across, logarithmic).
type plot struct {
	b      strings.Builder
	lo, hi float64 // of the time axis, in log10 of milliseconds
}

// WriteSVG writes a plot of each strategy's distribution of TTFT.
func (r *Report) WriteSVG(w io.Writer) error {
	p := plot{}
	curves := make([][]time.Duration, len(r.Results))
	least, most := never, time.Duration(0)
	for i, s := range r.Results {
		curves[i] = s.ttfts()
		if n := len(curves[i]); n > 0 {
			least, most = min(least, curves[i][0]), max(most, curves[i][n-1])
		}
	}
	if most == 0 {
		least, most = time.Millisecond, time.Second
	}
	p.lo, p.hi = math.Floor(logMS(least)), math.Ceil(logMS(most))
	if p.hi == p.lo {
		p.hi++
	}
	p.open(r.title())
	p.axes()
	for i, s := range r.Results {
		p.curve(i, s.Strategy, curves[i])
	}
	p.objective(r.Objective)
	p.b.WriteString("</svg>\n")
	_, err := io.WriteString(w, p.b.String())
	return err
}

// ttfts are the measured first tokens, sorted.
func (r *Result) ttfts() []time.Duration {
	measured := r.Samples[len(r.Samples)-r.Requests:]
	out := make([]time.Duration, len(measured))
	for i := range measured {
		out[i] = measured[i].TTFT
	}
	slices.Sort(out)
	return out
}

func logMS(d time.Duration) float64 { return math.Log10(float64(d) / float64(time.Millisecond)) }

// x is where a time lies, given as log10 of milliseconds; y where a share.
func (p *plot) x(log float64) float64 {
	return plotLeft + (log-p.lo)/(p.hi-p.lo)*(plotWidth-plotLeft-plotRight)
}

func (p *plot) y(share float64) float64 {
	return plotHeight - plotBottom - share*(plotHeight-plotTop-plotBottom)
}

func (p *plot) open(title string) {
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n",
		plotWidth, plotHeight, plotWidth, plotHeight)
	fmt.Fprintf(&p.b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, plotHeight)
	p.text(plotLeft, plotTop-20, "start", title)
}

func (p *plot) text(x, y float64, anchor, s string) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="#222222">`, x, y, anchor)
	// Writing to a strings.Builder does not fail.
	_ = xml.EscapeText(&p.b, []byte(s))
	p.b.WriteString("</text>\n")
}

func (p *plot) line(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

// axes draws the frame, a grid line for each digit of each decade, and labels.
func (p *plot) axes() {
	bottom, top := p.y(0), p.y(1)
	for decade := p.lo; decade <= p.hi; decade++ {
		p.line(p.x(decade), bottom, p.x(decade), top, "#bbbbbb")
		p.text(p.x(decade), bottom+18, "middle", axisLabel(decade))
		for digit := 2.0; digit < 10 && decade < p.hi; digit++ {
			at := p.x(decade + math.Log10(digit))
			p.line(at, bottom, at, top, "#eeeeee")
		}
	}
	for i := range 6 {
		share := float64(i) / 5
		p.line(p.x(p.lo), p.y(share), p.x(p.hi), p.y(share), "#bbbbbb")
		p.text(plotLeft-8, p.y(share)+4, "end", fmt.Sprintf("%.0f%%", 100*share))
	}
	p.text((p.x(p.lo)+p.x(p.hi))/2, plotHeight-18, "middle", "time to first token (share of requests within it)")
}

// axisLabel writes a power of ten of milliseconds.
func axisLabel(decade float64) string {
	switch {
	case decade >= 3:
		return fmt.Sprintf("%.0f s", math.Pow(10, decade-3))
	case decade >= 0:
		return fmt.Sprintf("%.0f ms", math.Pow(10, decade))
	}
	return fmt.Sprintf("%g ms", math.Pow(10, decade))
}

// curve draws one strategy's distribution and its line of the legend.
func (p *plot) curve(i int, name string, sorted []time.Duration) {
	style := fmt.Sprintf(`stroke="%s" stroke-width="2"`, colours[i%len(colours)])
	if d := dashes[i%len(dashes)]; d != "" {
		style += fmt.Sprintf(` stroke-dasharray="%s"`, d)
	}
	if n := len(sorted); n > 0 {
		fmt.Fprintf(&p.b, `<polyline fill="none" %s points="%.1f,%.1f`, style, p.x(logMS(sorted[0])), p.y(0))
		points := min(n, plotPoints)
		for k := 1; k <= points; k++ {
			share := float64(k) / float64(points)
			fmt.Fprintf(&p.b, " %.1f,%.1f", p.x(logMS(sorted[rank(n, share)])), p.y(share))
		}
		fmt.Fprintf(&p.b, ` %.1f,%.1f"/>`+"\n", p.x(p.hi), p.y(1))
	}
	left, at := float64(plotWidth-plotRight+20), float64(plotTop+10+22*i)
	fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", left, at, left+34, at, style)
	p.text(left+42, at+4, "start", name)
}

// objective marks the time, in milliseconds, that counts for goodput.
func (p *plot) objective(ms float64) {
	log := math.Log10(ms)
	if !(log >= p.lo && log <= p.hi) {
		return
	}
	fmt.Fprintf(&p.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#888888" stroke-dasharray="3 3"/>`+"\n",
		p.x(log), p.y(0), p.x(log), p.y(1)-6)
	p.text(p.x(log), p.y(1)-10, "middle", "objective")
}
