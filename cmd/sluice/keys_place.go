package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/keystore"
)

// keyPlace is where the keys are that a command works on.
type keyPlace struct {
	tenants, revoked, used string          // files
	store                  *keystore.Store // nil without a database
	// storeErr is why the database can't be had, for a command that has something to do all the same.
	storeErr error
}

// keyFlags name a place.
type keyFlags struct {
	tenants, config string
	// lenient goes to work although the database can't be had.
	lenient bool
}

func (f *keyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.tenants, "tenants", "", "tenants file")
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration file that names the tenants file and the database of keys, if there is one")
	cmd.MarkFlagsOneRequired("tenants", "config")
	cmd.MarkFlagsMutuallyExclusive("tenants", "config")
}

// at calls work with the place.
func (f *keyFlags) at(ctx context.Context, work func(*keyPlace) error) error {
	if f.config == "" {
		return work(&keyPlace{tenants: f.tenants, revoked: revokedBeside(f.tenants), used: usedBeside(f.tenants)})
	}
	cfg, err := loadKeysConfig(f.config)
	if err != nil {
		return err
	}
	p := &keyPlace{tenants: cfg.Tenants.File, revoked: cfg.revokedFile(), used: cfg.usedFile()}
	if p.store, err = openKeystore(ctx, &cfg.Keys); err != nil {
		if !f.lenient {
			return err
		}
		p.storeErr = err
	}
	if p.store == nil {
		return work(p)
	}
	return errors.Join(work(p), p.store.Close())
}

// loadKeysConfig reads of a configuration what keys need. What is wrong with the rest of it is no reason not to
// revoke a key.
func loadKeysConfig(path string) (*Config, error) {
	data, err := readBounded(path, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	c := DefaultConfig()
	d := yamlDecoder{file: path}
	d.decode(data, &c)
	c.resolvePaths(filepath.Dir(path))
	v := validator{cfg: &c, file: path, positions: d.positions}
	if c.Tenants.File == "" {
		v.errorf("tenants.file", "is missing, should be the file of tenants and their API keys")
	}
	v.keys()
	var issues []Issue
	for _, is := range append(d.issues, v.errors...) {
		top, _, _ := strings.Cut(is.Path, ".")
		if top == "" || top == "tenants" || top == "keys" {
			issues = append(issues, is)
		}
	}
	if len(issues) > 0 {
		sortIssues(issues)
		return nil, &ConfigError{Issues: issues}
	}
	return &c, nil
}

// create adds a key and says where.
func (p *keyPlace) create(ctx context.Context, tenant string, key *authn.Key) (where string, err error) {
	if p.store == nil {
		return p.tenants, authn.AppendKey(p.tenants, tenant, &key.Record)
	}
	dir, err := authn.LoadFile(p.tenants)
	if err != nil {
		return "", err
	}
	if dir.Tenant(tenant) == nil {
		return "", fmt.Errorf("cannot add a key: %s has no tenant %q; its tenants are %s", p.tenants, clip(tenant), tenantNames(dir.Tenants()))
	}
	return p.store.String(), p.store.Create(ctx, tenant, &key.Record)
}

func tenantNames(tenants []*tenancy.Tenant) string {
	if len(tenants) == 0 {
		return "none"
	}
	names := make([]string, len(tenants))
	for i, t := range tenants {
		names[i] = t.ID
	}
	return strings.Join(names, ", ")
}

// revokedKey is what was done to a key.
type revokedKey struct {
	tenant   string
	done     []string // where the key is refused from now on
	already  bool
	warnings []string
}

// revoke refuses a key in every place that has it or can say so. It succeeds if the key is refused, in
// whichever place.
func (p *keyPlace) revoke(ctx context.Context, id, reason string, now time.Time) (*revokedKey, error) {
	r := &revokedKey{}
	if authn.OtherPrincipal(id) {
		added, err := authn.Revoke(p.revoked, id, reason, now)
		r.already, r.done = !added, []string{p.revoked}
		return r, err
	}
	if p.store != nil {
		k, err := p.store.Revoke(ctx, id, actor(), reason, now)
		switch {
		case err == nil:
			r.tenant, r.done = k.Tenant, append(r.done, p.store.String())
		case errors.Is(err, keystore.ErrRevoked):
			r.tenant, r.already, r.done = k.Tenant, true, append(r.done, p.store.String())
		case !errors.Is(err, authn.ErrNoKey):
			return nil, err
		}
	}
	if len(r.done) > 0 {
		return r, nil
	}
	if p.storeErr != nil {
		return nil, p.revokeBesideStore(id, reason, now)
	}
	dir, err := authn.LoadFile(p.tenants)
	if err == nil {
		for _, k := range dir.Keys() {
			if k.ID == id {
				r.tenant, r.already = k.Tenant, k.Disabled
			}
		}
		if r.tenant == "" {
			return nil, fmt.Errorf("cannot revoke key %s: %w in %s", id, authn.ErrNoKey, p.places())
		}
	}
	return r, p.revokeInFiles(r, id, reason, err, now)
}

// revokeInFiles puts the key on the list, which nothing can be wrong with, before it is disabled in the tenants
// file, which may be faulty: then loadErr says so.
func (p *keyPlace) revokeInFiles(r *revokedKey, id, reason string, loadErr error, now time.Time) error {
	added, listErr := authn.Revoke(p.revoked, id, reason, now)
	if listErr == nil {
		r.done = append(r.done, p.revoked)
		r.already = r.already && !added
	}
	editErr := loadErr
	if editErr == nil {
		_, editErr = authn.RevokeKey(p.tenants, id)
	}
	if editErr == nil {
		r.done = append(r.done, p.tenants)
	}
	switch {
	case listErr != nil && editErr != nil:
		return errors.Join(listErr, editErr)
	case listErr != nil:
		r.warnings = append(r.warnings, listErr.Error())
	case editErr != nil:
		r.warnings = append(r.warnings, fmt.Sprintf("The key stays revoked only while it is on the list: set `disabled: true` in %s by hand. %v", p.tenants, editErr))
	}
	return nil
}

// revokeBesideStore puts the key on the list while the database can't be had. That does not do for the gateways of
// other machines, so it is an error all the same.
func (p *keyPlace) revokeBesideStore(id, reason string, now time.Time) error {
	if _, err := authn.Revoke(p.revoked, id, reason, now); err != nil {
		return errors.Join(p.storeErr, err)
	}
	return fmt.Errorf("key %s is revoked for the gateways that read %s, and no others: revoke it again when the database answers: %w", id, p.revoked, p.storeErr)
}

func (p *keyPlace) places() string {
	if p.store == nil {
		return p.tenants
	}
	return p.store.String() + " and " + p.tenants
}

// rotate ends a key and adds the one that next makes of it. It says where.
func (p *keyPlace) rotate(ctx context.Context, id string, end time.Time, next func(*authn.KeyInfo) (*authn.Record, error)) (old *authn.KeyInfo, where string, err error) {
	if p.store != nil {
		k, err := p.store.Rotate(ctx, id, end, next)
		if err == nil {
			return &k.KeyInfo, p.store.String(), nil
		}
		if !errors.Is(err, authn.ErrNoKey) {
			return nil, "", err
		}
	}
	k, err := authn.RotateKey(p.tenants, id, end, next)
	return &k, p.tenants, err
}

// findKey finds a key of a configuration in its database of keys, if it has one, and in its tenants file.
func findKey(cfg *Config, dir *authn.Directory, id string) (*authn.KeyInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), keysStart)
	defer cancel()
	store, err := openKeystore(ctx, &cfg.Keys)
	if err != nil {
		return nil, err
	}
	if store != nil {
		stored, _, err := store.Keys(ctx)
		if err = errors.Join(err, store.Close()); err != nil {
			return nil, err
		}
		for i := range stored {
			if stored[i].ID == id {
				return &stored[i].KeyInfo, nil
			}
		}
	}
	for _, k := range dir.Keys() {
		if k.ID == id {
			return &k, nil
		}
	}
	if store != nil {
		return nil, fmt.Errorf("neither %s nor the tenants file has a key %q", store, clip(id))
	}
	return nil, fmt.Errorf("the tenants file has no key %q", clip(id))
}

// actor is who runs the command, for the record.
func actor() string {
	if u, err := osuser.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprint("uid ", os.Getuid())
}

// revocable reads whom to revoke: a key, or a principal of another kind.
func revocable(text string) (string, error) {
	if authn.OtherPrincipal(text) {
		return text, nil
	}
	return keyID(text)
}

// keyID reads what a person calls a key by.
func keyID(text string) (string, error) {
	id, ok := authn.KeyIDOf(text)
	if !ok {
		return "", &usageError{"that is no id of a key: 1 to 32 lower-case letters and digits, the part between the underscores of the key"}
	}
	return id, nil
}
