package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// keptKeys is a file in which the keys of an issuer lie over a restart. Whoever can write it can say whose
// tokens are believed.
type keptKeys struct {
	path, issuer, url string
	log               *slog.Logger
	now               func() time.Time
}

// keptForm is what the file holds.
type keptForm struct {
	Issuer  string          `json:"issuer"`
	JWKSURL string          `json:"jwksUrl,omitempty"` // as configured; empty where it is discovered
	Fetched time.Time       `json:"fetched"`
	Keys    json.RawMessage `json:"jwks"`
}

// load returns the keys that were kept, nil if there are none that can be used. The provider has others if
// so, and none of this keeps a gateway from starting.
func (k *keptKeys) load() []byte {
	form, err := k.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		k.log.Warn("cannot use the issuer's keys that were kept; they are fetched", "file", k.path, "error", err)
		return nil
	}
	k.log.Info("the issuer's keys are those that were kept until others are fetched", "file", k.path, "fetched", form.Fetched)
	return form.Keys
}

func (k *keptKeys) read() (*keptForm, error) {
	info, err := os.Lstat(k.path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, errors.New("others than its owner may write it; take that from them, or delete it")
	}
	text, err := readIdentityFile(k.path)
	if err != nil {
		return nil, err
	}
	var form keptForm
	if json.Unmarshal(text, &form) != nil {
		return nil, errors.New("it is not what the gateway writes")
	}
	if form.Issuer != k.issuer || form.JWKSURL != k.url {
		return nil, errors.New("it is of another issuer, or of keys from elsewhere")
	}
	return &form, nil
}

// store keeps keys that were fetched.
func (k *keptKeys) store(jwks []byte) {
	text, err := json.Marshal(keptForm{k.issuer, k.url, k.now().UTC().Truncate(time.Second), jwks})
	if err == nil {
		err = replaceFile(k.path, func(w io.Writer) error { _, err := w.Write(append(text, '\n')); return err })
	}
	if err != nil {
		k.log.Error("cannot keep the issuer's keys for a restart", "file", k.path, "error", err)
	}
}

// cacheFile records an error unless the keys of an issuer can be kept there.
func (v *validator) cacheFile(at string, c *IssuerConfig) {
	if c.CacheFile == "" {
		return
	}
	if c.JWKSFile != "" {
		v.errorf(at, "is given beside jwksFile, whose keys are not fetched; take it out")
	}
	if st, err := os.Stat(filepath.Dir(c.CacheFile)); err != nil || !st.IsDir() {
		v.errorf(at, "the folder %s does not exist; make it first", filepath.Dir(c.CacheFile))
	}
	for i := range v.cfg.Identity.JWT {
		if other := &v.cfg.Identity.JWT[i]; other != c && other.CacheFile == c.CacheFile {
			v.errorf(at, "is identity.jwt[%d].cacheFile, too; every issuer needs a file of its own", i)
			return
		}
	}
	for _, p := range v.cfg.paths() {
		if *p.value == c.CacheFile {
			v.errorf(at, "is %s, too; it needs a file of its own, which is overwritten", p.key)
			return
		}
	}
}

// resolvePaths makes what is written beside the configuration start from its folder.
func (c *IdentityConfig) resolvePaths(resolve func(*string)) {
	for i := range c.JWT {
		resolve(&c.JWT[i].CacheFile)
	}
}

// keep gives a source of keys the file that keeps them.
func (f *keySource) keep(log *slog.Logger) *keptKeys {
	if f.file == "" {
		return nil
	}
	return &keptKeys{path: f.file, issuer: f.issuer, url: f.url, log: log, now: time.Now}
}
