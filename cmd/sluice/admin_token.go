package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// adminTokenFile is where the admin token is: the configured file, or the one that is made.
func (c *Config) adminTokenFile() string {
	if c.Listen.Admin.TokenFile != "" {
		return c.Listen.Admin.TokenFile
	}
	return c.Ledger.Path + ".admin-token"
}

// adminCredential returns the admin token. Where none is configured it is made, beside the ledger, for its
// owner alone: so that a program of somebody else on this machine, or a page in a browser, has nothing from
// reaching the listener. One that an earlier start has made stays.
func (a *app) adminCredential() (string, error) {
	file := a.cfg.adminTokenFile()
	if a.cfg.Listen.Admin.TokenFile != "" {
		token, err := readSecretText(file)
		if err != nil {
			return "", fmt.Errorf("cannot read listen.admin.tokenFile: %w", err)
		}
		return token, nil
	}
	token, err := readMadeToken(file)
	if errors.Is(err, fs.ErrNotExist) {
		token, err = makeToken(file)
	}
	if err != nil {
		return "", fmt.Errorf("cannot use the admin token beside the ledger; remove the file, or give listen.admin.tokenFile: %w", err)
	}
	a.log.Info("admin token", "file", file)
	return token, nil
}

// readMadeToken reads what makeToken has written, if nobody else can.
func readMadeToken(file string) (string, error) {
	f, err := plainfile.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("%s can be read by others (mode %04o), should be 0600", file, mode)
	}
	token, err := readSecretText(file)
	if err == nil && len(token) < madeTokenBytes {
		err = errors.New("the file holds less than a token")
	}
	return token, err
}

// madeTokenBytes is how much chance is in a token.
const madeTokenBytes = 32

func makeToken(file string) (string, error) {
	var random [madeTokenBytes]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	token := base64.RawURLEncoding.EncodeToString(random[:])
	// Written aside and then put in place, so that whoever reads it sees all of it.
	aside := file + ".new"
	if err := os.Remove(aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	f, err := os.OpenFile(aside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(token + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	return token, os.Rename(aside, file)
}
