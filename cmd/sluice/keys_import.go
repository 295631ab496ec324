package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/authn"
)

func newKeysImportCommand(now func() time.Time) *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "import -c FILE",
		Short: "Copy the API keys of the tenants file to the database",
		Long: "Copy the keys of the tenants file that work to the database of keys that the configuration names, with when\n" +
			"they were last used. Their holders notice nothing. Keys that are in the database stay as they are there. From\n" +
			"then on the database's copy counts, though a key that either of the two revokes is refused; take the keys out\n" +
			"of the tenants file when every gateway has the database in its configuration.",
		Example: "  sluice keys import -c sluice.yaml",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			place := keyFlags{config: config}
			return place.at(cmd.Context(), func(p *keyPlace) error {
				if p.store == nil {
					return fmt.Errorf("%s names no database of keys: give keys.path or keys.postgresFile", config)
				}
				i, err := p.importKeys(cmd.Context(), now())
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "Copied %s of %s to %s; %s there before, %s left out that no longer work\n",
					count(i.added, "key"), p.tenants, p.store, plural(i.there, "was", "were"), plural(i.dead, "was", "were"))
				return nil
			})
		}),
	}
	cmd.Flags().StringVarP(&config, "config", "c", "", "configuration file that names the tenants file and the database of keys")
	markRequired(cmd, "config")
	return cmd
}

// plural is a number and the verb that goes with it.
func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", more)
}

// importedKeys counts what became of a file's keys.
type importedKeys struct{ added, there, dead int }

func (p *keyPlace) importKeys(ctx context.Context, now time.Time) (i importedKeys, err error) {
	dir, err := authn.LoadFile(p.tenants)
	if err != nil {
		return i, err
	}
	listed, err := authn.LoadRevoked(p.revoked)
	if err != nil {
		return i, err
	}
	var alive []authn.KeyInfo
	for _, k := range dir.Keys() {
		if k.Disabled || listed.Key(k.ID) || !k.Expires.IsZero() && !now.Before(k.Expires) {
			i.dead++
			continue
		}
		alive = append(alive, k)
	}
	added, err := p.store.Import(ctx, alive)
	if err != nil {
		return i, err
	}
	i.added, i.there = len(added), len(alive)-len(added)
	return i, p.importUses(ctx, added)
}

// importUses brings along when keys were last used, as far as that is known.
func (p *keyPlace) importUses(ctx context.Context, ids []string) error {
	if p.used == "" {
		return nil
	}
	uses, err := authn.LoadUses(p.used)
	if err != nil {
		return fmt.Errorf("the keys were copied, but not when they were last used: %w", err)
	}
	at := make(map[string]time.Time)
	for _, id := range ids {
		if t, ok := uses.Used[id]; ok {
			at[id] = t
		}
	}
	if err := p.store.Used(ctx, at); err != nil {
		return fmt.Errorf("the keys were copied, but not when they were last used: %w", err)
	}
	return nil
}
