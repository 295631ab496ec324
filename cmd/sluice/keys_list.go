package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// listedKey is a key as `keys list --format json` prints it. It grows by fields only.
type listedKey struct {
	Tenant      string         `json:"tenant"`
	ID          string         `json:"id"`
	State       string         `json:"state"`
	Where       string         `json:"where"`
	Name        string         `json:"name,omitempty"`
	Groups      []string       `json:"groups,omitempty"`
	Scopes      []string       `json:"scopes,omitempty"`
	Models      []string       `json:"models,omitempty"`
	Operations  []string       `json:"operations,omitempty"`
	Claims      map[string]any `json:"claims,omitempty"`
	Created     *time.Time     `json:"created,omitempty"`
	Expires     *time.Time     `json:"expires,omitempty"`
	LastUsed    *time.Time     `json:"last_used,omitempty"`
	RotatedFrom string         `json:"rotated_from,omitempty"`
	Revoked     *time.Time     `json:"revoked,omitempty"`
	RevokedBy   string         `json:"revoked_by,omitempty"`
	Reason      string         `json:"reason,omitempty"`
}

// Words of listedKey.State.
const (
	keyActive   = "active"
	keyDisabled = "disabled"
	keyRevoked  = "revoked"
	keyExpired  = "expired"
	keyAsleep   = "tenant disabled"
	keyOrphan   = "tenant unknown"
)

// keyListing is all keys of a place.
type keyListing struct {
	keys []listedKey
	// since is when the use of keys began to be noted, the latest of all places that have keys; zero for never.
	since time.Time
	notes []string // for whoever asked
}

func (p *keyPlace) list(ctx context.Context, now time.Time) (*keyListing, error) {
	dir, err := authn.LoadFile(p.tenants)
	if err != nil {
		return nil, err
	}
	listed, err := authn.LoadRevoked(p.revoked)
	if err != nil {
		return nil, err
	}
	l, uses := &keyListing{}, &authn.Uses{}
	if p.used != "" {
		known, err := authn.LoadUses(p.used)
		if err != nil { // the gateway's own, maybe, and no reason to show nothing
			l.notes = append(l.notes, err.Error())
		} else {
			uses = known
		}
	}
	l.since = uses.Since
	inStore, disabled := make(map[string]bool), make(map[string]bool)
	for _, k := range dir.Keys() {
		disabled[k.ID] = k.Disabled
	}
	if p.store != nil {
		stored, since, err := p.store.Keys(ctx)
		if err != nil {
			return nil, err
		}
		for i := range stored {
			k := &stored[i]
			inStore[k.ID] = true
			row := rowOf(&k.KeyInfo, dir, listed, now)
			row.Where, row.LastUsed, row.Revoked, row.RevokedBy, row.Reason = "database", instantOf(k.Used), instantOf(k.Revoked), k.By, k.Reason
			if k.Disabled || disabled[k.ID] {
				row.State = keyRevoked
			}
			l.keys = append(l.keys, row)
		}
		if len(dir.Keys()) == 0 || since.After(l.since) && !l.since.IsZero() {
			l.since = since
		}
	}
	for _, k := range dir.Keys() {
		if inStore[k.ID] {
			continue // the database's counts
		}
		row := rowOf(&k, dir, listed, now)
		row.Where, row.LastUsed = "file", instantOf(uses.Used[k.ID])
		l.keys = append(l.keys, row)
	}
	slices.SortStableFunc(l.keys, func(a, b listedKey) int { return strings.Compare(a.Tenant, b.Tenant) })
	return l, nil
}

func rowOf(k *authn.KeyInfo, dir *authn.Directory, listed *authn.Revocations, now time.Time) listedKey {
	row := listedKey{
		Tenant: k.Tenant, ID: k.ID, State: keyActive, Name: k.Name, Groups: k.Groups, Scopes: k.Scopes, Models: k.Models,
		Operations: k.Operations, Claims: k.Claims, Created: instantOf(k.Created), Expires: instantOf(k.Expires), RotatedFrom: k.RotatedFrom,
	}
	switch t := dir.Tenant(k.Tenant); {
	case t == nil:
		row.State = keyOrphan
	case t.Disabled:
		row.State = keyAsleep
	case listed.Key(k.ID):
		row.State = keyRevoked
	case k.Disabled:
		row.State = keyDisabled
	case !k.Expires.IsZero() && !now.Before(k.Expires):
		row.State = keyExpired
	}
	return row
}

func instantOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func newKeysListCommand(now func() time.Time) *cobra.Command {
	var place keyFlags
	var format, unused, tenant string
	cmd := &cobra.Command{
		Use:   "list (--tenants FILE | -c FILE)",
		Short: "List the API keys, without anything secret",
		Long: "List the API keys of a tenants file and, with a configuration that names one, of the database of keys.\n" +
			"When a key was last used is known to the minute, from the gateways that note it.",
		Example: "  sluice keys list -c sluice.yaml --unused-for 90d\n  sluice keys list --tenants tenants.yaml --format json",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			if format != "text" && format != "json" {
				return &usageError{fmt.Sprintf("--format %q is not known, should be text or json", clip(format))}
			}
			span, err := parseSpan("--unused-for", unused)
			if err != nil {
				return err
			}
			return place.at(cmd.Context(), func(p *keyPlace) error {
				l, err := p.list(cmd.Context(), now())
				if err != nil {
					return err
				}
				for _, note := range l.notes {
					fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", note)
				}
				if unused != "" {
					l.keepUnused(span, now(), cmd.ErrOrStderr())
				}
				if tenant != "" {
					l.keys = slices.DeleteFunc(l.keys, func(k listedKey) bool { return k.Tenant != tenant })
				}
				if format == "json" {
					return writeJSON(cmd.OutOrStdout(), append([]listedKey{}, l.keys...)) // [] rather than null
				}
				return l.write(cmd.OutOrStdout())
			})
		}),
	}
	place.add(cmd)
	cmd.Flags().StringVar(&format, "format", "text", "text or json")
	cmd.Flags().StringVar(&tenant, "tenant", "", "only keys of this tenant")
	cmd.Flags().StringVar(&unused, "unused-for", "", "only keys that work and have not been used for that long, as in 90d or 12h")
	return cmd
}

// keepUnused leaves the keys that work and that nobody has used for a time. Keys that are younger than that have
// had no chance. It says where less is known than was asked for.
func (l *keyListing) keepUnused(span time.Duration, now time.Time, note io.Writer) {
	limit := now.Add(-span)
	l.keys = slices.DeleteFunc(l.keys, func(k listedKey) bool {
		return k.State != keyActive || k.LastUsed != nil && k.LastUsed.After(limit) || k.Created != nil && k.Created.After(limit)
	})
	switch {
	case l.since.IsZero():
		fmt.Fprintln(note, "No gateway has noted yet when these keys are used.")
	case l.since.After(limit):
		fmt.Fprintf(note, "The use of keys is noted since %s only.\n", l.since.Format(time.RFC3339))
	}
}

func (l *keyListing) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tID\tSTATE\tCREATED\tEXPIRES\tUSED\tGROUPS\tSCOPE\tNAME")
	for i := range l.keys {
		k := &l.keys[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.Tenant, k.ID, k.State, dateOrDash(k.Created), dateOrDash(k.Expires),
			dateOrDash(k.LastUsed), orDash(strings.Join(k.Groups, ",")), orDash(strings.Join(slices.Concat(k.Models, k.Operations), ",")), orDash(k.Name))
	}
	return w.Flush()
}

func dateOrDash(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
