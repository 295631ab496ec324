// Package authntest reads the corpus of API keys with the answers that are
// expected of authn and of a gateway.
package authntest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Corpus is a list of cases and the files that hold for them.
type Corpus struct {
	// Tenants is the text of a tenants file, Revoked that of a list of revoked
	// credentials.
	Tenants, Revoked string
	Cases            []Case
}

// Case is something that is sent to say who calls.
type Case struct {
	Name string
	// Send are whole header lines, Target is the request's, or empty.
	Send   []string
	Target string
	// At is the time for which Identify holds, zero for any after 2026.
	At time.Time
	// Identify is "ok" or a reason; empty if the case is about headers.
	Identify string
	// Status and Word are the gateway's answer; Status is 0 where it is not asked.
	Status int
	Word   string
}

var (
	letters = regexp.MustCompile(`\{([A-Z])(?:\*(\d+))?\}`)
	digests = regexp.MustCompile(`SHA256\(([A-Z])\)`)
)

// secretLength is that of a key's secret.
const secretLength = 43

// expand puts secrets and digests in their places.
func expand(text string) string {
	text = letters.ReplaceAllStringFunc(text, func(s string) string {
		m := letters.FindStringSubmatch(s)
		n := secretLength
		if m[2] != "" {
			n, _ = strconv.Atoi(m[2]) // digits alone
		}
		return strings.Repeat(m[1], n)
	})
	return digests.ReplaceAllStringFunc(text, func(s string) string {
		sum := sha256.Sum256([]byte(strings.Repeat(digests.FindStringSubmatch(s)[1], secretLength)))
		return hex.EncodeToString(sum[:])
	})
}

// Load reads the corpus in a folder.
func Load(dir string) (*Corpus, error) {
	tenants, err := os.ReadFile(filepath.Join(dir, "tenants.yaml"))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "corpus.txt"))
	if err != nil {
		return nil, err
	}
	c := &Corpus{Tenants: expand(string(tenants)), Revoked: "kl9\n"}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || len(c.Cases) == 0 && key != "case" {
			return nil, fmt.Errorf("corpus.txt:%d: should be `case:` and what belongs to one", n)
		}
		if key == "case" {
			c.Cases = append(c.Cases, Case{Name: strings.TrimSpace(value)})
			continue
		}
		if err := c.Cases[len(c.Cases)-1].set(key, strings.TrimPrefix(value, " ")); err != nil {
			return nil, fmt.Errorf("corpus.txt:%d: %w", n, err)
		}
	}
	return c, nil
}

func (c *Case) set(key, value string) (err error) {
	switch key {
	case "send":
		if value, err = header(value); err == nil {
			c.Send = append(c.Send, value)
		}
	case "target":
		c.Target = expand(value)
	case "at":
		c.At, err = time.Parse(time.RFC3339Nano, value)
	case "identify":
		c.Identify = value
	case "http":
		status, word, _ := strings.Cut(value, " ")
		c.Word = word
		c.Status, err = strconv.Atoi(status)
	default:
		err = fmt.Errorf("nobody knows what %q is", key)
	}
	return err
}

// header is a line as it is, or a string of Go, and what follows a plus sign.
func header(value string) (string, error) {
	if !strings.HasPrefix(value, `"`) {
		return expand(value), nil
	}
	quoted, rest, ok := strings.Cut(value, `" +`)
	if !ok {
		return "", fmt.Errorf("a line in quotes goes on with a plus sign")
	}
	text, err := strconv.Unquote(quoted + `"`)
	return text + expand(strings.TrimPrefix(rest, " ")), err
}
