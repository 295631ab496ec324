package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/keystore"
)

// KeysConfig says where API keys are kept beside the tenants file, and how they are followed.
type KeysConfig struct {
	RevokedFile  string        `yaml:"revokedFile"`  // list of revoked credentials; default: the tenants file's name and .revoked
	UsedFile     string        `yaml:"usedFile"`     // when the tenants file's keys were last used; default: its name and .used; "none": not kept
	Path         string        `yaml:"path"`         // SQLite database of keys
	PostgresFile string        `yaml:"postgresFile"` // holds the connection string of a PostgreSQL database of keys
	MaxStale     time.Duration `yaml:"maxStale"`     // how long keys are believed that the database can't be asked about; 0 = without end
	WarnBefore   time.Duration `yaml:"warnBefore"`   // how long before its end a key is warned of; 0 = never
	CutRunning   bool          `yaml:"cutRunning"`   // true ends the running requests of a credential that is revoked
}

func defaultKeys() KeysConfig { return KeysConfig{WarnBefore: 7 * 24 * time.Hour} }

// revokedFile is the list of revoked credentials.
func (c *Config) revokedFile() string {
	if c.Keys.RevokedFile != "" {
		return c.Keys.RevokedFile
	}
	return revokedBeside(c.Tenants.File)
}

func revokedBeside(tenants string) string { return tenants + ".revoked" }

// noUsedFile is the value of KeysConfig.UsedFile by which it is not kept when keys were used.
const noUsedFile = "none"

// usedFile is where it is noted when the keys of the tenants file were last used; empty for nowhere.
func (c *Config) usedFile() string {
	switch c.Keys.UsedFile {
	case noUsedFile:
		return ""
	case "":
		return usedBeside(c.Tenants.File)
	}
	return c.Keys.UsedFile
}

func usedBeside(tenants string) string { return tenants + ".used" }

// keyFiles are the files of keys.
func (c *Config) keyFiles() authn.Files {
	return authn.Files{Tenants: c.Tenants.File, Revoked: c.revokedFile(), Used: c.usedFile()}
}

// database reports whether keys are kept in one.
func (c *KeysConfig) database() bool { return c.Path != "" || c.PostgresFile != "" }

// keys checks where keys are kept.
func (v *validator) keys() {
	c := &v.cfg.Keys
	if c.MaxStale != 0 {
		v.duration("keys.maxStale", c.MaxStale, time.Second, 365*24*time.Hour)
		if !c.database() {
			v.errorf("keys.maxStale", "is about keys in a database, but neither keys.path nor keys.postgresFile is given; take it out, or name the database")
		}
	}
	v.duration("keys.warnBefore", c.WarnBefore, 0, 365*24*time.Hour)
	for _, f := range []struct{ key, path string }{
		{"keys.revokedFile", c.RevokedFile}, {"keys.usedFile", c.UsedFile}, {"keys.path", c.Path},
	} {
		if f.path == "" || f.path == noUsedFile {
			continue
		}
		if st, err := os.Stat(filepath.Dir(f.path)); err != nil || !st.IsDir() {
			v.errorf(f.key, "the folder %s does not exist; make it first", filepath.Dir(f.path))
		}
	}
	if c.Path != "" && c.PostgresFile != "" {
		v.errorf("keys.path", "is given beside keys.postgresFile; keys are in one database, so take one of the two out")
	}
	if c.Path != "" && c.Path == v.cfg.Ledger.Path {
		v.errorf("keys.path", "is the ledger's file too; keys need one of their own")
	}
	if c.PostgresFile == "" {
		return
	}
	dsn, err := readSecretText(c.PostgresFile)
	if err == nil {
		err = keystore.CheckPostgres(dsn)
	}
	if err != nil && !isMissing(err) {
		v.errorf("keys.postgresFile", "cannot use %s: %v", c.PostgresFile, err)
	}
}

// openKeystore opens the database of keys, nil if there is none.
func openKeystore(ctx context.Context, c *KeysConfig) (*keystore.Store, error) {
	switch {
	case c.Path != "":
		return keystore.Open(ctx, c.Path)
	case c.PostgresFile == "":
		return nil, nil
	}
	dsn, err := readSecretText(c.PostgresFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read keys.postgresFile: %w", err)
	}
	return keystore.OpenPostgres(ctx, dsn)
}

// keysStart bounds the wait for the database of keys at the start.
const keysStart = time.Minute

// newLiveKeys returns the keys in force. Close gives the database back, if there is one.
func newLiveKeys(cfg *Config, dir *authn.Directory, log *slog.Logger) (_ *authn.Live, closeStore func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), keysStart)
	defer cancel()
	lc := authn.LiveConfig{
		Files: cfg.keyFiles(), Watch: cfg.Reload.Watch,
		MaxStale: cfg.Keys.MaxStale, WarnBefore: cfg.Keys.WarnBefore, Log: log,
	}
	store, err := openKeystore(ctx, &cfg.Keys)
	if err != nil {
		return nil, nil, err
	}
	closeStore = func() error { return nil }
	if store != nil {
		lc.Store, closeStore = store, store.Close
	}
	live, err := authn.NewLive(ctx, lc, dir)
	if err != nil {
		_ = closeStore() // it was only read
		return nil, nil, err
	}
	return live, closeStore, nil
}
