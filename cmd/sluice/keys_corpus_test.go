package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy/authn/authntest"
)

// The corpus of keys, put to a running gateway: the status, the reason in the metric and the log, one and the
// same body for every 401, and nothing of what was sent in anything that it says.
func TestKeyCorpusAtTheEdge(t *testing.T) {
	corpus, err := authntest.Load("../../tenancy/authn/testdata/keys")
	if err != nil {
		t.Fatal(err)
	}
	r := startReloading(t, unwatched, func(dir string) {
		write(t, dir, map[string]string{"tenants.yaml": corpus.Tenants, "tenants.yaml.revoked": corpus.Revoked})
		file := filepath.Join(dir, "sluice.yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`, labelPrincipals: \[[^]]*\]`).ReplaceAll(text, nil)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	var unauthorized []byte
	asked := 0
	for _, c := range corpus.Cases {
		if c.Status == 0 {
			continue
		}
		asked++
		before := authFailures(t, r.a)
		resp, body := r.raw(c)
		if resp.StatusCode != c.Status {
			t.Errorf("%s: status %d, want %d: %s", c.Name, resp.StatusCode, c.Status, body)
			continue
		}
		failed := ""
		for reason, n := range authFailures(t, r.a) {
			if n != before[reason] {
				failed += reason
			}
		}
		switch {
		case c.Status == 401:
			if unauthorized == nil {
				unauthorized = body
			}
			if failed != c.Word || !bytes.Equal(body, unauthorized) || resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s: counted as %q, want %q; body %s", c.Name, failed, c.Word, body)
			}
			if line := lastLine(r.log.about("status=401")); !strings.Contains(line, c.Word) {
				t.Errorf("%s: the log does not give the reason %s: %s", c.Name, c.Word, line)
			}
		case c.Word != "":
			var e struct{ Error struct{ Code string } }
			if err := json.Unmarshal(body, &e); err != nil || e.Error.Code != c.Word || failed != "" {
				t.Errorf("%s: code %q, want %q (%v, %s)", c.Name, e.Error.Code, c.Word, failed, body)
			}
		}
		if secret.Match(body) {
			t.Errorf("%s: the answer shows the credential: %s", c.Name, body)
		}
	}
	if asked < 50 {
		t.Errorf("%d cases were asked", asked)
	}
	for what, text := range map[string]string{"the log": r.log.String(), "the metrics": metricsText(t, r.a)} {
		if m := secret.FindString(text); m != "" {
			t.Errorf("%s shows a credential: %s", what, m)
		}
	}
}

// secret matches any of the corpus's, in clear and as Basic has it.
var secret = regexp.MustCompile(`A{20}|B{20}|C{20}|D{20}|E{20}|F{20}|G{20}|H{20}|I{20}|QUFBQUFB`)

// raw sends a case byte for byte.
func (r *reloading) raw(c authntest.Case) (*http.Response, []byte) {
	r.Helper()
	conn, err := net.Dial("tcp", r.a.public.Addr().String())
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(stackPatience)); err != nil {
		r.Fatal(err)
	}
	target := c.Target
	if target == "" {
		target = "/v1/models"
	}
	request := "GET " + target + " HTTP/1.1\r\nHost: sluice.test\r\nConnection: close\r\n"
	for _, line := range c.Send {
		request += line + "\r\n"
	}
	if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
		r.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		r.Fatalf("%s: %v", c.Name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatalf("%s: %v", c.Name, err)
	}
	return resp, body
}

var authFailure = regexp.MustCompile(`(?m)^sluice_auth_failures_total\{reason="(\w+)"\} (\d+)$`)

// authFailures are the counts by reason.
func authFailures(t *testing.T, a *app) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	for _, m := range authFailure.FindAllStringSubmatch(metricsText(t, a), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		counts[m[1]] = n
	}
	return counts
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return fmt.Sprint(lines[len(lines)-1])
}
