package main

import (
	"cmp"
	"strings"
	"time"
	"unicode"

	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// ChargebackConfig is what `sluice chargeback` puts into exports beside the ledger's rows, and when a month
// may be closed. The gateway itself does not read it.
type ChargebackConfig struct {
	BillingAccount BillingAccountConfig `yaml:"billingAccount"`
	Provider       string               `yaml:"provider"`      // makes the service available
	Publisher      string               `yaml:"publisher"`     // has made it
	InvoiceIssuer  string               `yaml:"invoiceIssuer"` // bills for it; default: Provider
	SettleDelay    time.Duration        `yaml:"settleDelay"`   // from the end of a month to its closing, at least
}

// BillingAccountConfig is whom the charges are billed to.
type BillingAccountConfig struct {
	ID       string `yaml:"id"`
	Name     string `yaml:"name"`
	Currency string `yaml:"currency"` // of usage without a price
}

const maxSettleDelay = 60 * 24 * time.Hour

func defaultChargeback() ChargebackConfig {
	t := chargeback.DefaultTerms()
	return ChargebackConfig{
		BillingAccount: BillingAccountConfig{ID: t.BillingAccountID, Name: t.BillingAccountName},
		Provider:       t.Provider, Publisher: t.Publisher,
		SettleDelay: 24 * time.Hour,
	}
}

// terms are the configuration's terms of an export.
func (c *ChargebackConfig) terms() chargeback.Terms {
	return chargeback.Terms{
		Format:           chargeback.FormatNow,
		BillingAccountID: c.BillingAccount.ID, BillingAccountName: c.BillingAccount.Name, Currency: c.BillingAccount.Currency,
		Provider: c.Provider, Publisher: c.Publisher, InvoiceIssuer: cmp.Or(c.InvoiceIssuer, c.Provider),
	}
}

func (v *validator) chargeback() {
	c := &v.cfg.Chargeback
	for _, s := range []struct{ key, value string }{
		{"billingAccount.id", c.BillingAccount.ID},
		{"billingAccount.name", c.BillingAccount.Name},
		{"provider", c.Provider},
		{"publisher", c.Publisher},
		{"invoiceIssuer", c.InvoiceIssuer},
	} {
		switch {
		case s.value == "" && s.key == "invoiceIssuer":
		case strings.TrimSpace(s.value) == "":
			v.errorf("chargeback."+s.key, "is empty, should be a name: it is in every line of an export")
		case len(s.value) > 256 || strings.ContainsFunc(s.value, unicode.IsControl):
			v.errorf("chargeback."+s.key, "should be one line of at most 256 bytes")
		}
	}
	if c.InvoiceIssuer != "" && c.InvoiceIssuer != c.Provider {
		v.warnf("chargeback.invoiceIssuer", "is not chargeback.provider: FOCUS takes such charges for those of a marketplace and wants their BilledCost to be 0, so validators complain")
	}
	if c.BillingAccount.Currency != "" {
		v.matching("chargeback.billingAccount.currency", c.BillingAccount.Currency, currencyPattern, "a code of three capital letters, like USD")
	}
	v.duration("chargeback.settleDelay", c.SettleDelay, 0, maxSettleDelay)
}
