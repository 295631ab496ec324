package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/authn"
)

func newKeysRevokeCommand(now func() time.Time) *cobra.Command {
	place := keyFlags{lenient: true}
	var reason string
	cmd := &cobra.Command{
		Use:   "revoke (--tenants FILE | -c FILE) ID",
		Short: "Refuse an API key from now on",
		Long: "Refuse an API key from now on, for good. Running gateways do so within a second, whatever else they can or\n" +
			"cannot load; requests that they have let in by then run on.\n\n" +
			"A key of a tenants file is put on the list of revoked credentials beside it, which works even if the file has a\n" +
			"fault, and disabled in the file; a key of a database is revoked there. ID is the part of the key between its\n" +
			"underscores, which logs and the ledger show, too. A principal that has no key (jwt:… or mtls:…, as in the\n" +
			"ledger) is put on the list.",
		Example: "  sluice keys revoke -c sluice.yaml 7k2m9x4c0qpd --reason \"posted in a chat\"",
		Args:    cobra.ExactArgs(1),
		RunE: command(func(cmd *cobra.Command, args []string) error {
			id, err := revocable(args[0])
			if err != nil {
				return err
			}
			return place.at(cmd.Context(), func(p *keyPlace) error {
				r, err := p.revoke(cmd.Context(), id, reason, now())
				if err != nil {
					return err
				}
				r.tell(cmd, id)
				return nil
			})
		}),
	}
	place.add(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}

func (r *revokedKey) tell(cmd *cobra.Command, id string) {
	of := ""
	if r.tenant != "" {
		of = " of tenant " + r.tenant
	}
	verb := "Revoked"
	if r.already {
		verb = "Already revoked:"
	}
	if !authn.OtherPrincipal(id) {
		verb += " key"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %s%s in %s\n", verb, id, of, strings.Join(r.done, " and "))
	for _, w := range r.warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", w)
	}
}

func newKeysRotateCommand(now func() time.Time) *cobra.Command {
	var place keyFlags
	var overlap, expires string
	cmd := &cobra.Command{
		Use:   "rotate (--tenants FILE | -c FILE) ID",
		Short: "Replace an API key by a new one that may do the same",
		Long: "Make a key that may do what another one may, show it once, and let the old one end after a time in which both\n" +
			"work. The new key lasts as long as the old one was to last, unless --expires says otherwise. To end a key that\n" +
			"somebody else has, use --overlap 0s, or revoke it.",
		Example: "  sluice keys rotate -c sluice.yaml 7k2m9x4c0qpd --overlap 7d",
		Args:    cobra.ExactArgs(1),
		RunE: command(func(cmd *cobra.Command, args []string) error {
			id, err := keyID(args[0])
			if err != nil {
				return err
			}
			span, err := parseSpan("--overlap", overlap)
			if err != nil {
				return err
			}
			until, err := parseExpiry(expires, now())
			if err != nil {
				return err
			}
			return place.at(cmd.Context(), func(p *keyPlace) error { return rotate(cmd, p, id, span, until, now()) })
		}),
	}
	place.add(cmd)
	cmd.Flags().StringVar(&overlap, "overlap", "24h", "how long the old key goes on to work, as in 7d or 12h")
	cmd.Flags().StringVar(&expires, "expires", "", "when the new key ends: 90d, 12h, or a date as in 2027-01-31; default: as long as the old one was to last")
	return cmd
}

func rotate(cmd *cobra.Command, p *keyPlace, id string, overlap time.Duration, until, now time.Time) error {
	key, err := authn.NewKey()
	if err != nil {
		return fmt.Errorf("cannot make a key: %w", err)
	}
	end := now.Add(overlap).UTC().Truncate(time.Second)
	listed, err := authn.LoadRevoked(p.revoked)
	if err != nil {
		return err
	}
	old, where, err := p.rotate(cmd.Context(), id, end, func(old *authn.KeyInfo) (*authn.Record, error) {
		if old.Disabled || listed.Key(id) {
			return nil, errors.New("it is revoked; make a new one with `sluice keys create`")
		}
		key.Name, key.Groups, key.Scopes, key.Models, key.Operations, key.Claims = old.Name, old.Groups, old.Scopes, old.Models, old.Operations, old.Claims
		key.RotatedFrom, key.Created, key.Expires = old.ID, now.UTC().Truncate(time.Second), until
		if until.IsZero() && !old.Expires.IsZero() {
			if old.Created.IsZero() || !old.Expires.After(old.Created) {
				return nil, errors.New("how long it was to last is not known, as it has no `created`; give the new key's end by --expires")
			}
			key.Expires = key.Created.Add(old.Expires.Sub(old.Created))
		}
		return &key.Record, nil
	})
	if err != nil {
		return err
	}
	if err := reveal(cmd, &key, where); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Added key %s to tenant %s in %s; it %s. The key above is shown this once.\nKey %s %s.\n",
		key.ID, old.Tenant, where, describeExpiry(key.Expires), id, describeEnd(old.Expires, now))
	return nil
}

func describeEnd(end, now time.Time) string {
	if !end.After(now) {
		return "no longer works"
	}
	return "works until " + end.Format(time.RFC3339)
}
