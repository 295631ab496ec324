package main

import (
	"fmt"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// revoked warns of what is odd about the list of revoked credentials.
func (c *checker) revoked(cfg *Config) {
	list, err := authn.LoadRevoked(cfg.revokedFile())
	switch {
	case err != nil:
		c.warn(Issue{File: cfg.revokedFile(), Text: err.Error()})
	case list.Odd > 0:
		c.warn(Issue{File: cfg.revokedFile(), Line: list.FirstOdd, Column: 1, Text: fmt.Sprintf("%s of revoked credentials that name nobody, this one first: a line should be the id of a key or of a principal", count(list.Odd, "line"))})
	}
}
