package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// maxConfigBytes bounds the configuration file, against the wrong file being named.
const maxConfigBytes = 1 << 20

// Issue is one thing wrong with a configuration file, or, among warnings, one worth knowing.
type Issue struct {
	File         string
	Line, Column int    // from 1; 0 where the issue has no place in the file
	Path         string // as in pools[0].workers[1].url; empty for the file as a whole
	Text         string // what is wrong and what it should be
}

// String writes the issue as file:line:column: path: text, without the parts that are not known.
func (i Issue) String() string {
	var b strings.Builder
	b.WriteString(i.File)
	if i.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", i.Line, i.Column)
	}
	b.WriteString(": ")
	if i.Path != "" {
		b.WriteString(i.Path + ": ")
	}
	b.WriteString(i.Text)
	return b.String()
}

// ConfigError lists everything found wrong with a configuration file, in the file's order.
type ConfigError struct{ Issues []Issue }

// Error returns one line for each issue.
func (e *ConfigError) Error() string {
	lines := make([]string, len(e.Issues))
	for i, is := range e.Issues {
		lines[i] = is.String()
	}
	return strings.Join(lines, "\n")
}

// LoadConfig reads, decodes and validates a configuration file. The warnings are there whether or not
// the error is nil. The error is a *ConfigError unless the file cannot be read at all.
func LoadConfig(path string) (cfg *Config, warnings []Issue, err error) {
	data, err := readBounded(path, maxConfigBytes)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	return parseConfig(path, data)
}

// parseConfig is LoadConfig on the file's bytes; path names it in messages, and its folder is what
// relative paths start from.
func parseConfig(path string, data []byte) (*Config, []Issue, error) {
	p, warnings, err := parsePositions(path, data, false)
	if err != nil {
		return nil, warnings, err
	}
	return p.cfg, warnings, nil
}

// parsedConfig is a valid configuration that knows where in its file the values are.
type parsedConfig struct {
	file      string
	cfg       *Config
	positions map[string]filePosition // by path
}

// readConfig is LoadConfig with the places of values, and without warnings. It is for a gateway that runs:
// files that list workers are followed by themselves there, and a fault in one is no fault of the
// configuration.
func readConfig(path string) (*parsedConfig, error) {
	data, err := plainfile.Read(path, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	p, _, err := parsePositions(path, data, true)
	return p, err
}

// parsePositions is parseConfig with the places of values; running is for a gateway that runs.
func parsePositions(path string, data []byte, running bool) (*parsedConfig, []Issue, error) {
	c := DefaultConfig()
	d := yamlDecoder{file: path}
	d.decode(data, &c)
	c.complete()
	c.resolvePaths(filepath.Dir(path))
	v := validator{cfg: &c, file: path, positions: d.positions, running: running}
	if len(d.issues) == 0 {
		// Checks across values would only repeat, in other words, what the decoding has found.
		v.validate()
	}
	issues := append(d.issues, v.errors...)
	sortIssues(issues)
	sortIssues(v.warnings)
	if len(issues) > 0 {
		return nil, v.warnings, &ConfigError{Issues: issues}
	}
	return &parsedConfig{file: path, cfg: &c, positions: d.positions}, v.warnings, nil
}

func sortIssues(issues []Issue) {
	slices.SortStableFunc(issues, func(a, b Issue) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// configPath is a value of the configuration that names a file or a folder.
type configPath struct {
	key   string
	value *string
	isDir bool
}

// paths returns every path that must exist before the gateway starts. The ledger is not among them,
// since it is made when absent.
func (c *Config) paths() []configPath {
	all := []configPath{
		{"listen.public.tls.certFile", &c.Listen.Public.TLS.CertFile, false},
		{"listen.public.tls.keyFile", &c.Listen.Public.TLS.KeyFile, false},
		{"listen.admin.tokenFile", &c.Listen.Admin.TokenFile, false},
		{"listen.admin.tls.certFile", &c.Listen.Admin.TLS.CertFile, false},
		{"listen.admin.tls.keyFile", &c.Listen.Admin.TLS.KeyFile, false},
		{"tenants.file", &c.Tenants.File, false},
		{"keys.postgresFile", &c.Keys.PostgresFile, false},
		{"policy.dir", &c.Policy.Dir, true},
		{"cacheIsolation.keyFile", &c.CacheIsolation.KeyFile, false},
		{"prices.file", &c.Prices.File, false},
		{"ledger.postgresFile", &c.Ledger.PostgresFile, false},
		{"decisionLog.hashKeyFile", &c.DecisionLog.HashKeyFile, false},
	}
	all = append(all, c.Identity.paths()...)
	all = append(all, c.Store.Redis.paths()...)
	for i := range c.Labels.External {
		all = append(all, configPath{fmt.Sprintf("labels.external[%d].apiKeyFile", i), &c.Labels.External[i].APIKeyFile, false})
	}
	for i := range c.Models {
		all = append(all,
			configPath{fmt.Sprintf("models[%d].tokenizer", i), &c.Models[i].Tokenizer, true},
			configPath{fmt.Sprintf("models[%d].chatTemplate", i), &c.Models[i].ChatTemplate, false})
	}
	for i := range c.Pools {
		all = append(all,
			configPath{fmt.Sprintf("pools[%d].apiKeyFile", i), &c.Pools[i].APIKeyFile, false},
			configPath{fmt.Sprintf("pools[%d].workersFrom.file", i), &c.Pools[i].WorkersFrom.File, false})
	}
	return all
}

func (c *Config) resolvePaths(dir string) {
	resolve := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	for _, p := range c.paths() {
		resolve(p.value)
	}
	resolve(&c.Ledger.Path)
	resolve(&c.Keys.Path)
	resolve(&c.Keys.RevokedFile)
	if c.Keys.UsedFile != noUsedFile {
		resolve(&c.Keys.UsedFile)
	}
	resolve(&c.DecisionLog.Path)
	c.Identity.resolvePaths(resolve)
	resolve(&c.Ledger.Retention.Archive)
}

// readBounded reads a whole file of at most limit bytes. It may be a pipe, as of a shell's <(...).
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return plainfile.ReadFrom(f, path, limit)
}

// maxSecretBytes bounds a file that holds one secret.
const maxSecretBytes = 64 << 10

// readSecretText reads a file that holds one line of text: a token or a worker's API key. White space
// around it is not part of the secret. Errors never hold any of the content.
func readSecretText(path string) (string, error) {
	data, err := plainfile.Read(path, maxSecretBytes)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", errors.New("the file is empty")
	}
	for _, r := range text {
		if r <= ' ' || r > '~' {
			return "", errors.New("the file holds white space or a character outside printable ASCII inside the secret; it should hold one word")
		}
	}
	return text, nil
}

// minKeyBytes is the shortest cache isolation key.
const minKeyBytes = 32

// readKey reads a key of random bytes: the file's content as it is, 32 bytes or more.
func readKey(path string) ([]byte, error) {
	data, err := plainfile.Read(path, maxSecretBytes)
	if err != nil {
		return nil, err
	}
	if len(data) < minKeyBytes {
		return nil, fmt.Errorf("the file holds %d bytes, should be a random key of %d or more; for example: openssl rand -out %s %d",
			len(data), minKeyBytes, filepath.Base(path), minKeyBytes)
	}
	return data, nil
}
