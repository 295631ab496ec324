package main

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/authn"
)

func newKeysCommand(now func() time.Time) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Create and list API keys",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeysCreateCommand(now), newKeysListCommand(now))
	return cmd
}

func newKeysCreateCommand(now func() time.Time) *cobra.Command {
	var file, tenant, name, expires string
	var groups, scopes []string
	cmd := &cobra.Command{
		Use:   "create --tenants FILE --tenant ID",
		Short: "Add an API key to a tenant and show it once",
		Long: "Add an API key to a tenant. The key is written to standard output, this once; the tenants file keeps\n" +
			"its public id and the SHA-256 of its secret, and every other byte of the file stays as it is.",
		Example: "  sluice keys create --tenants tenants.yaml --tenant acme --expires 90d --group devs",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			until, err := parseExpiry(expires, now())
			if err != nil {
				return err
			}
			key, err := authn.NewKey()
			if err != nil {
				return fmt.Errorf("cannot make a key: %w", err)
			}
			key.Name, key.Groups, key.Scopes = name, groups, scopes
			key.Created, key.Expires = now().UTC().Truncate(time.Second), until
			if err := authn.AppendKey(file, tenant, &key.Record); err != nil {
				return err
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), key.Reveal()); err != nil {
				return fmt.Errorf("cannot show the key, which is in %s already; take its record %s out again: %w", file, key.ID, err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Added key %s to tenant %s in %s; it %s. The key above is shown this once.\n",
				key.ID, tenant, file, describeExpiry(until))
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "tenants", "", "tenants file")
	flags.StringVar(&tenant, "tenant", "", "id of the tenant that gets the key")
	flags.StringVar(&name, "name", "", "what the key is for")
	flags.StringVar(&expires, "expires", "", "when it ends: 90d, 12h, or a date as in 2027-01-31; default: never")
	flags.StringArrayVar(&groups, "group", nil, "group of the key's holder, for policies; may be repeated")
	flags.StringArrayVar(&scopes, "scope", nil, "scope of the key, for policies; may be repeated")
	markRequired(cmd, "tenants", "tenant")
	return cmd
}

// parseExpiry reads a time from now, in days or as Go writes durations, or a date, which ends at its
// start in UTC. An empty text is the zero time: never.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	bad := &usageError{fmt.Sprintf("--expires %q is not understood, should be as in 90d, 12h or 2027-01-31", clip(text))}
	if text == "" {
		return time.Time{}, nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		if !day.After(now) {
			return time.Time{}, &usageError{fmt.Sprintf("--expires %s is in the past", text)}
		}
		return day, nil
	}
	var span time.Duration
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return time.Time{}, bad
		}
		span = time.Duration(n) * 24 * time.Hour
	} else if d, err := time.ParseDuration(text); err == nil {
		span = d
	} else {
		return time.Time{}, bad
	}
	if span <= 0 {
		return time.Time{}, &usageError{fmt.Sprintf("--expires %s is not in the future", text)}
	}
	return now.Add(span).UTC().Truncate(time.Second), nil
}

func describeExpiry(until time.Time) string {
	if until.IsZero() {
		return "does not expire"
	}
	return "expires on " + until.Format(time.RFC3339)
}

func newKeysListCommand(now func() time.Time) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "list --tenants FILE",
		Short: "List the API keys of a tenants file, without anything secret",
		Args:  cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			dir, err := authn.LoadFile(file)
			if err != nil {
				return err
			}
			return writeKeys(cmd, dir, now())
		}),
	}
	cmd.Flags().StringVar(&file, "tenants", "", "tenants file")
	markRequired(cmd, "tenants")
	return cmd
}

func writeKeys(cmd *cobra.Command, dir *authn.Directory, now time.Time) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tID\tSTATE\tCREATED\tEXPIRES\tGROUPS\tNAME")
	for _, k := range dir.Keys() {
		state := "active"
		switch t := dir.Tenant(k.Tenant); {
		case t != nil && t.Disabled:
			state = "tenant disabled"
		case k.Disabled:
			state = "disabled"
		case !k.Expires.IsZero() && !now.Before(k.Expires):
			state = "expired"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.Tenant, k.ID, state,
			orDash(formatDate(k.Created)), orDash(formatDate(k.Expires)), orDash(strings.Join(k.Groups, ",")), orDash(k.Name))
	}
	return w.Flush()
}

func formatDate(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// markRequired makes flags of cmd required.
func markRequired(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}
