package keystore

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// grants is what a key grants and where it may be used, as one JSON text.
type grants struct {
	Groups     []string         `json:"groups,omitempty"`
	Scopes     []string         `json:"scopes,omitempty"`
	Models     []string         `json:"models,omitempty"`
	Operations []string         `json:"operations,omitempty"`
	Claims     map[string]claim `json:"claims,omitempty"`
}

func grantsOf(rec *authn.Record) string {
	g := grants{Groups: rec.Groups, Scopes: rec.Scopes, Models: rec.Models, Operations: rec.Operations}
	if len(rec.Claims) > 0 {
		g.Claims = make(map[string]claim, len(rec.Claims))
	}
	for name, v := range rec.Claims {
		g.Claims[name] = claim{v}
	}
	text, err := json.Marshal(g)
	if err != nil {
		panic("BUG: a key record holds a value without a JSON form")
	}
	return string(text)
}

func readGrants(text string, rec *authn.Record) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields() // a restriction that a newer program has set is none to pass over
	var g grants
	if err := d.Decode(&g); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one value")
	}
	rec.Groups, rec.Scopes, rec.Models, rec.Operations = g.Groups, g.Scopes, g.Models, g.Operations
	if len(g.Claims) > 0 {
		rec.Claims = make(map[string]any, len(g.Claims))
	}
	for name, v := range g.Claims {
		rec.Claims[name] = v.value
	}
	return nil
}

// claim is a value of a key's claims: a string, bool, int64 or float64, or a list of
// those. A whole float64 stays one: it is written with a point.
type claim struct{ value any }

// MarshalJSON implements json.Marshaler.
func (c claim) MarshalJSON() ([]byte, error) {
	switch v := c.value.(type) {
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".eE") {
			text += ".0"
		}
		return []byte(text), nil
	case []any:
		list := make([]claim, len(v))
		for i, item := range v {
			list[i] = claim{item}
		}
		return json.Marshal(list)
	}
	return json.Marshal(c.value)
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *claim) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return err
	}
	var err error
	if list, ok := v.([]any); ok {
		for i := range list {
			if list[i], err = scalarOf(list[i]); err != nil {
				return err
			}
		}
		c.value = list
		return nil
	}
	c.value, err = scalarOf(v)
	return err
}

func scalarOf(v any) (any, error) {
	switch v := v.(type) {
	case string, bool:
		return v, nil
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return v.Float64()
		}
		return v.Int64()
	}
	return nil, errors.New("a claim is neither text, a number, true, false, nor a list of those")
}
