package chargeback

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// value is one field of a line.
type value struct {
	kind valueKind
	text string // of a null, empty
}

type valueKind uint8

const (
	null valueKind = iota
	textual
	numeric
	object // JSON
)

// textOf is null without a text.
func textOf(s string) value {
	if s == "" {
		return value{}
	}
	return value{textual, s}
}

func objectOf(pairs ...string) value {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(quoted(pairs[i]))
		b.WriteByte(':')
		b.Write(quoted(pairs[i+1]))
	}
	b.WriteByte('}')
	return value{object, b.String()}
}

// quoted is a text as JSON. Bytes that are no UTF-8 become U+FFFD.
func quoted(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always can be
	return bytes.TrimRight(b.Bytes(), "\n")
}

// header names the columns, in the order of Statement.record.
var header = []string{
	"BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd",
	"ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "ChargeClass", "ChargeFrequency", "ChargeDescription",
	"InvoiceId", "InvoiceIssuerName", "ProviderName", "PublisherName", "ServiceCategory", "ServiceSubcategory", "ServiceName",
	"SubAccountId", "SubAccountName", "SubAccountType", "ResourceId", "ResourceName", "ResourceType",
	"SkuId", "SkuMeter", "SkuPriceId", "SkuPriceDetails",
	"ConsumedQuantity", "ConsumedUnit", "CommitmentDiscountStatus", "PricingCategory", "PricingQuantity", "PricingUnit",
	"ListUnitPrice", "ContractedUnitPrice", "ListCost", "ContractedCost", "EffectiveCost", "BilledCost",
	"Tags", "x_Team", "x_Model", "x_Pool", "x_Class", "x_Requests",
	"x_DiscountMillionths", "x_Unpriced", "x_Reason", "x_PeriodState",
}

// record is a line as fields.
func (s *Statement) record(l *line) []value {
	instant := func(t time.Time) value { return value{textual, t.Format(time.RFC3339)} }
	class := value{}
	if !l.used.Equal(s.from) {
		class = value{textual, "Correction"}
	}
	currency := l.currency
	if currency == "" {
		currency = s.currency
	}
	resource := value{}
	if l.pool != "" {
		resource = value{textual, "Worker pool"}
	}
	unit, pricingUnit := "Tokens", "1000000 Tokens"
	consumed := strconv.FormatInt(l.quantity, 10)
	if l.meter == tenancy.MeterGPU {
		unit, pricingUnit, consumed = "GPU-Seconds", "GPU-Seconds", decimal(l.quantity)
	}
	paid := l.price * (tenancy.FullDiscount - l.discount) // below 2^63 for any price of a table
	cost := value{numeric, decimal(l.cost)}
	return []value{
		textOf(s.terms.BillingAccountID), textOf(s.terms.BillingAccountName), textOf(currency), instant(s.from), instant(s.to),
		instant(l.used), instant(l.used.AddDate(0, 1, 0)), textOf("Usage"), class, textOf("Usage-Based"), textOf(description(l)),
		{}, textOf(s.terms.InvoiceIssuer), textOf(s.terms.Provider), textOf(s.terms.Publisher),
		textOf("AI and Machine Learning"), textOf("Generative AI"), textOf("LLM inference"),
		textOf(l.tenant), textOf(l.tenant), textOf("Tenant"), textOf(l.pool), textOf(l.pool), resource,
		textOf(l.model), textOf(l.meter), textOf(priceID(l)), objectOf("x_Meter", l.meter, "x_Model", l.model),
		{numeric, consumed}, textOf(unit), {}, textOf("Standard"), {numeric, decimal(l.quantity)}, textOf(pricingUnit),
		{numeric, decimal(l.price)}, {numeric, product(12, paid)},
		{numeric, product(12, l.quantity, l.price)}, {numeric, product(18, l.quantity, paid)}, cost, cost,
		objectOf("class", l.class, "pool", l.pool, "team", l.team),
		textOf(l.team), textOf(l.model), textOf(l.pool), textOf(l.class), {numeric, strconv.FormatInt(l.requests, 10)},
		{numeric, strconv.FormatInt(l.discount, 10)}, textOf(strconv.FormatBool(l.currency == "")), textOf(l.reason), textOf(string(s.state)),
	}
}

var meterTexts = map[string]string{
	tenancy.MeterInput:       "input tokens",
	tenancy.MeterCachedInput: "input tokens read from a cache",
	tenancy.MeterOutput:      "output tokens",
	tenancy.MeterReasoning:   "reasoning tokens",
	tenancy.MeterGPU:         "seconds of a GPU",
}

func description(l *line) string {
	text := l.model + ": " + meterTexts[l.meter]
	if l.currency == "" {
		text += ", without a price"
	}
	if l.reason != "" {
		text += ", corrected"
	}
	return text
}

func priceID(l *line) string {
	if l.currency == "" {
		return l.model + "/" + l.meter + "/unpriced"
	}
	return fmt.Sprintf("%s/%s/%s/%d", l.model, l.meter, l.currency, l.price)
}

// decimal is a count of millionths as a decimal with six places.
func decimal(micro int64) string { return product(6, micro) }

// product is the product of counts, of which so many places are behind the point:
// at least six, and more without zeros at their end.
func product(places int, factors ...int64) string {
	n := big.NewInt(1)
	for _, f := range factors {
		n.Mul(n, big.NewInt(f))
	}
	digits := new(big.Int).Abs(n).String()
	if len(digits) <= places {
		digits = strings.Repeat("0", places+1-len(digits)) + digits
	}
	whole, fraction := digits[:len(digits)-places], digits[len(digits)-places:]
	for len(fraction) > 6 && fraction[len(fraction)-1] == '0' {
		fraction = fraction[:len(fraction)-1]
	}
	sign := ""
	if n.Sign() < 0 {
		sign = "-"
	}
	return sign + whole + "." + fraction
}

// parseDecimal is the inverse of decimal.
func parseDecimal(s string) (int64, error) {
	whole, frac, ok := strings.Cut(s, ".")
	if !ok || len(frac) != 6 {
		return 0, fmt.Errorf("%q is no decimal with six places", s)
	}
	return strconv.ParseInt(whole+frac, 10, 64)
}

// parseQuantity reads a consumed quantity in the meter's smallest unit.
func parseQuantity(meter, s string) (int64, error) {
	if meter == tenancy.MeterGPU {
		return parseDecimal(s)
	}
	return strconv.ParseInt(s, 10, 64)
}

func writeCSV(records [][]value) ([]byte, error) {
	return csvOf(records, func(v value) string { return v.text })
}

func writeSpreadsheet(records [][]value) ([]byte, error) {
	return csvOf(records, func(v value) string {
		if v.kind == textual {
			return cell(v.text)
		}
		return v.text
	})
}

func csvOf(records [][]value, text func(value) string) ([]byte, error) {
	var buf bytes.Buffer
	out := csv.NewWriter(&buf)
	if err := out.Write(header); err != nil {
		return nil, err
	}
	fields := make([]string, len(header))
	for _, rec := range records {
		for i, v := range rec {
			fields[i] = text(v)
		}
		if err := out.Write(fields); err != nil {
			return nil, err
		}
	}
	out.Flush()
	return buf.Bytes(), out.Error()
}

// cell keeps a spreadsheet from taking a name for a formula: text that begins
// like one gets an apostrophe in front.
func cell(s string) string {
	if s == "" {
		return s
	}
	if strings.ContainsAny(s[:1], "=+-@\t\r\n") || hasAnyPrefix(s, "＝", "＋", "－", "＠") {
		return "'" + s
	}
	return s
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

func readCSV(text []byte) ([]map[string]string, error) {
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	var out []map[string]string
	for _, row := range rows[1:] {
		rec := make(map[string]string, len(row))
		for i, name := range rows[0] {
			rec[name] = row[i]
		}
		out = append(out, rec)
	}
	return out, nil
}

func writeJSON(records [][]value) ([]byte, error) {
	var b bytes.Buffer
	for _, rec := range records {
		for i, v := range rec {
			if i == 0 {
				b.WriteByte('{')
			} else {
				b.WriteByte(',')
			}
			b.Write(quoted(header[i]))
			b.WriteByte(':')
			switch v.kind {
			case null:
				b.WriteString("null")
			case textual:
				b.Write(quoted(v.text))
			default:
				b.WriteString(v.text)
			}
		}
		b.WriteString("}\n")
	}
	return b.Bytes(), nil
}

func readJSON(text []byte) ([]map[string]string, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var out []map[string]string
	for {
		var fields map[string]any
		switch err := dec.Decode(&fields); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		}
		rec := make(map[string]string, len(fields))
		for name, v := range fields {
			switch v := v.(type) {
			case string:
				rec[name] = v
			case json.Number:
				rec[name] = v.String()
			}
		}
		out = append(out, rec)
	}
}
