package chargeback

import (
	"cmp"
	"regexp"
	"slices"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/strictyaml"
)

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// priceDocument reads a price table.
type priceDocument struct {
	reader
	currency      string
	prices        []Price
	discounts     []Discount
	priceNodes    []strictyaml.Node // parallel to prices
	discountNodes []strictyaml.Node
}

// ParsePrices reads the text of a price table; name is for messages.
func ParsePrices(name string, text []byte) (*Prices, error) {
	d := &priceDocument{reader: newReader(name)}
	body, ok := d.Parse(text, "prices")
	if !ok {
		return nil, d.Err()
	}
	var prices, discounts strictyaml.Node
	var listed, discounted bool
	ok = d.Fields(body, "the file", map[string]func(strictyaml.Node){
		"currency":  func(n strictyaml.Node) { d.currency = d.code(n) },
		"prices":    func(n strictyaml.Node) { prices, listed = n, true },
		"discounts": func(n strictyaml.Node) { discounts, discounted = n, true },
	})
	switch {
	case listed:
		for _, item := range d.Items(prices, "prices") {
			d.price(item)
		}
	case ok:
		d.Fail(body, "the file has no `prices:` list")
	}
	if discounted {
		for _, item := range d.Items(discounts, "discounts") {
			d.discount(item)
		}
	}
	d.checkPrices()
	d.checkDiscounts()
	if err := d.Err(); err != nil {
		return nil, err
	}
	return d.table(), nil
}

// table is the table of a document without problems.
func (d *priceDocument) table() *Prices {
	p := &Prices{byModel: make(map[string][]Price), discounts: d.discounts}
	for _, price := range d.prices {
		if glob(price.Model).plain() {
			p.byModel[price.Model] = append(p.byModel[price.Model], price)
		} else {
			p.globs = append(p.globs, price)
		}
	}
	for _, prices := range p.byModel {
		slices.SortFunc(prices, func(a, b Price) int { return a.ValidFrom.Compare(b.ValidFrom) })
	}
	slices.SortStableFunc(p.globs, func(a, b Price) int { return cmp.Compare(glob(b.Model).weight(), glob(a.Model).weight()) })
	slices.SortStableFunc(p.discounts, func(a, b Discount) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(glob(b.Model).weight(), glob(a.Model).weight()))
	})
	return p
}

func (d *priceDocument) code(n strictyaml.Node) string {
	s := d.text(n, "currency")
	if s != "" && !currencyCode.MatchString(s) {
		d.Fail(n, "currency should be a code of three capital letters, like USD")
	}
	return s
}

func (d *priceDocument) model(n strictyaml.Node, what string) string {
	s := d.text(n, "model")
	if err := glob(s).check(); err != nil {
		d.Fail(n, "%s's model: %v", what, err)
	}
	return s
}

func (d *priceDocument) price(n strictyaml.Node) {
	before := d.Problems()
	p := Price{Currency: d.currency}
	has := make(map[string]bool)
	known := map[string]func(strictyaml.Node){
		"model":     func(n strictyaml.Node) { p.Model, has["model"] = d.model(n, "a price"), true },
		"currency":  func(n strictyaml.Node) { p.Currency = d.code(n) },
		"validFrom": func(n strictyaml.Node) { p.ValidFrom = d.instant(n, "validFrom") },
		"validTo":   func(n strictyaml.Node) { p.ValidTo = d.instant(n, "validTo") },
	}
	for key, field := range map[string]*int64{
		"input": &p.Input, "cachedInput": &p.CachedInput, "output": &p.Output, "reasoning": &p.Reasoning, "gpuSecond": &p.GPUSecond,
	} {
		known[key] = func(n strictyaml.Node) { *field, has[key] = d.amount(n, key, maxPrice, "micro-units"), true }
	}
	if !d.Fields(n, "a price", known) {
		return
	}
	require := func(has bool, what string) {
		if !has {
			d.Fail(n, "a price has no %s", what)
		}
	}
	require(has["model"], "model")
	if has["model"] && p.Model == "" && d.Problems() == before {
		d.Fail(n, "a price's model is empty; name the model")
	}
	require(has["input"], "input; write 0 if it is free")
	require(has["output"], "output; write 0 if it is free")
	require(p.Currency != "", "currency, and the file names none for all")
	if !has["cachedInput"] {
		p.CachedInput = p.Input
	}
	if !has["reasoning"] {
		p.Reasoning = p.Output
	}
	d.checkSpan(n, p.span())
	if d.Problems() == before {
		d.prices, d.priceNodes = append(d.prices, p), append(d.priceNodes, n)
	}
}

func (d *priceDocument) discount(n strictyaml.Node) {
	before := d.Problems()
	var c Discount
	given := false
	ok := d.Fields(n, "a discount", map[string]func(strictyaml.Node){
		"tenant": func(n strictyaml.Node) { c.Tenant = d.text(n, "tenant") },
		"team":   func(n strictyaml.Node) { c.Team = d.text(n, "team") },
		"model":  func(n strictyaml.Node) { c.Model = d.model(n, "a discount") },
		"millionths": func(n strictyaml.Node) {
			c.Millionths, given = d.amount(n, "millionths", tenancy.FullDiscount, "millionths"), true
		},
		"validFrom": func(n strictyaml.Node) { c.ValidFrom = d.instant(n, "validFrom") },
		"validTo":   func(n strictyaml.Node) { c.ValidTo = d.instant(n, "validTo") },
	})
	if !ok || d.Problems() > before {
		return
	}
	if (c.Tenant == "") == (c.Team == "") {
		d.Fail(n, "a discount should name a tenant or a team, one of the two")
	}
	if !given {
		d.Fail(n, "a discount has no millionths; 125000 are 12.5 per cent")
	}
	c.Model = cmp.Or(c.Model, "*")
	d.checkSpan(n, c.span())
	if d.Problems() == before {
		d.discounts, d.discountNodes = append(d.discounts, c), append(d.discountNodes, n)
	}
}

func (d *priceDocument) checkSpan(n strictyaml.Node, s span) {
	if !s.to.IsZero() && !s.from.Before(s.to) {
		d.Fail(n, "validTo should be after validFrom")
	}
}

// sameRank reports whether neither of two globs comes before the other where both
// match.
func sameRank(a, b string) bool {
	if glob(a).weight() != glob(b).weight() {
		return false
	}
	if glob(a).plain() {
		return a == b
	}
	return glob(a).meets(glob(b))
}

// checkPrices reports prices of the same rank that hold at the same instant.
func (d *priceDocument) checkPrices() {
	for i := range d.prices {
		for j := range i {
			a, b := &d.prices[i], &d.prices[j]
			if !sameRank(a.Model, b.Model) || !a.span().meets(b.span()) {
				continue
			}
			d.Fail(d.priceNodes[i], "this price of %q overlaps the one%s in line %d; end that with validTo, or begin this later",
				a.Model, otherGlob(a.Model, b.Model), d.priceNodes[j].Line())
		}
	}
}

// otherGlob names a second glob where it is another one.
func otherGlob(a, b string) string {
	if a == b {
		return ""
	}
	return " of \"" + b + "\""
}

// checkDiscounts does so for discounts of one payer.
func (d *priceDocument) checkDiscounts() {
	for i := range d.discounts {
		for j := range i {
			a, b := &d.discounts[i], &d.discounts[j]
			if a.Tenant != b.Tenant || a.Team != b.Team || !sameRank(a.Model, b.Model) || !a.span().meets(b.span()) {
				continue
			}
			d.Fail(d.discountNodes[i], "this discount on %q overlaps the one%s in line %d; end that with validTo, or begin this later",
				a.Model, otherGlob(a.Model, b.Model), d.discountNodes[j].Line())
		}
	}
}
