package main

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
)

func newKeysCommand(now func() time.Time) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Create, list, rotate, revoke and import API keys",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeysCreateCommand(now), newKeysListCommand(now), newKeysRevokeCommand(now), newKeysRotateCommand(now), newKeysImportCommand(now))
	return cmd
}

// newKey is what `keys create` was asked for.
type newKey struct {
	place                              keyFlags
	tenant, name, expires              string
	groups, scopes, models, operations []string
}

func newKeysCreateCommand(now func() time.Time) *cobra.Command {
	var f newKey
	cmd := &cobra.Command{
		Use:   "create (--tenants FILE | -c FILE) --tenant ID",
		Short: "Add an API key to a tenant and show it once",
		Long: "Add an API key to a tenant. The key is written to standard output, this once; kept are its public id and the\n" +
			"SHA-256 of its secret. In a tenants file every other byte stays as it is. A configuration with a database of\n" +
			"keys puts the key there.\n\n" +
			"--model and --operation restrict the key, beside what its tenant may do: the gateway enforces them. --group and\n" +
			"--scope restrict nothing by themselves: they are what policies see.",
		Example: "  sluice keys create --tenants tenants.yaml --tenant acme --expires 90d --group devs\n" +
			"  sluice keys create -c sluice.yaml --tenant acme --model 'qwen-*' --operation chat",
		Args: cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return f.create(cmd, now())
		}),
	}
	f.place.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.tenant, "tenant", "", "id of the tenant that gets the key")
	flags.StringVar(&f.name, "name", "", "what the key is for")
	flags.StringVar(&f.expires, "expires", "", "when it ends: 90d, 12h, or a date as in 2027-01-31; default: never")
	flags.StringArrayVar(&f.models, "model", nil, "model that the key is for, a name or a pattern; may be repeated; default: all of the tenant's")
	flags.StringArrayVar(&f.operations, "operation", nil, "operation that the key is for, as in chat; may be repeated; default: all")
	flags.StringArrayVar(&f.groups, "group", nil, "group of the key's holder, for policies; may be repeated")
	flags.StringArrayVar(&f.scopes, "scope", nil, "scope of the key, for policies; may be repeated")
	markRequired(cmd, "tenant")
	return cmd
}

func (f *newKey) create(cmd *cobra.Command, now time.Time) error {
	until, err := parseExpiry(f.expires, now)
	if err != nil {
		return err
	}
	if err := checkScope(f.models, f.operations); err != nil {
		return err
	}
	key, err := authn.NewKey()
	if err != nil {
		return fmt.Errorf("cannot make a key: %w", err)
	}
	key.Name, key.Groups, key.Scopes, key.Models, key.Operations = f.name, f.groups, f.scopes, f.models, f.operations
	key.Created, key.Expires = now.UTC().Truncate(time.Second), until
	return f.place.at(cmd.Context(), func(p *keyPlace) error {
		where, err := p.create(cmd.Context(), f.tenant, &key)
		if err != nil {
			return err
		}
		if err := reveal(cmd, &key, where); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "Added key %s to tenant %s in %s; it %s. The key above is shown this once.\n",
			key.ID, f.tenant, where, describeExpiry(until))
		return nil
	})
}

// reveal writes a new key that is kept by now.
func reveal(cmd *cobra.Command, key *authn.Key, where string) error {
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), key.Reveal()); err != nil {
		return fmt.Errorf("cannot show the key, which is in %s already; revoke %s: %w", where, key.ID, err)
	}
	return nil
}

// checkScope refuses what no request could match.
func checkScope(models, operations []string) error {
	for _, glob := range models {
		if _, err := path.Match(glob, "model"); err != nil || glob == "" {
			return &usageError{fmt.Sprintf("--model %q is no usable pattern: write a name, or a pattern like qwen-*", clip(glob))}
		}
	}
	for _, name := range operations {
		if !slices.Contains(tenancy.Operations(), name) {
			return &usageError{fmt.Sprintf("--operation %q is not known, should be one of %s", clip(name), strings.Join(tenancy.Operations(), ", "))}
		}
	}
	return nil
}

// parseExpiry reads a time from now, in days or as Go writes durations, or a date, which ends at its
// start in UTC. An empty text is the zero time: never.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		if !day.After(now) {
			return time.Time{}, &usageError{fmt.Sprintf("--expires %s is in the past", text)}
		}
		return day, nil
	}
	span, ok := spanOf(text)
	switch {
	case !ok:
		return time.Time{}, &usageError{fmt.Sprintf("--expires %q is not understood, should be as in 90d, 12h or 2027-01-31", clip(text))}
	case span <= 0:
		return time.Time{}, &usageError{fmt.Sprintf("--expires %s is not in the future", text)}
	}
	return now.Add(span).UTC().Truncate(time.Second), nil
}

// spanOf reads a number of days, or what Go writes for durations.
func spanOf(text string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err == nil
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// parseSpan reads the value of a flag that is a length of time, or empty for none.
func parseSpan(flag, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	span, ok := spanOf(text)
	if !ok || span < 0 {
		return 0, &usageError{fmt.Sprintf("%s %q is not understood, should be as in 90d or 12h", flag, clip(text))}
	}
	return span, nil
}

func describeExpiry(until time.Time) string {
	if until.IsZero() {
		return "does not expire"
	}
	return "expires on " + until.Format(time.RFC3339)
}

// markRequired makes flags of cmd required.
func markRequired(cmd *cobra.Command, names ...string) {
	for _, name := range names {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}
