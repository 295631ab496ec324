package main

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

// keyLife makes a key, uses it, rotates it and revokes it. That a key is shown to
// whoever makes it is the one time that it is.
func (k *keeping) keyLife() {
	k.Helper()
	make := func(args ...string) string {
		k.Helper()
		var out, errs syncBuffer
		if code := execute(k.Context(), time.Now, append(args, "-c", k.file), strings.NewReader(""), &out, &errs); code != exitOK {
			k.Fatalf("%v: %s", args, errs.String())
		}
		k.out = append(k.out, errs.String())
		key := strings.TrimSpace(out.String())
		k.secrets.Add("a new key", strings.SplitN(key, "_", 3)[2])
		return key
	}
	wait := func(key string, status int) {
		k.Helper()
		public, _, _ := k.child.addresses()
		soon(k.T, fmt.Sprint("a key to be answered with ", status), stackPatience, func() bool {
			req, err := http.NewRequestWithContext(k.Context(), http.MethodGet, "https://"+public+"/v1/models", nil)
			if err != nil {
				k.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key)
			resp, err := k.child.client.Do(req)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			return resp.StatusCode == status
		})
		k.send(0, "POST", chatPath, chat(false, ""), "Authorization", "Bearer "+key)
	}
	first := make("keys", "create", "--tenant", "acme", "--name", "first")
	wait(first, 200)
	second := make("keys", "rotate", keyIDIn(k.T, first), "--overlap", "0s")
	wait(first, 401)
	wait(second, 200)
	k.run("keys", "revoke", "-c", k.file, keyIDIn(k.T, second), "--reason", "no reason")
	wait(second, 401)
	k.run("keys", "list", "-c", k.file)
	third := make("keys", "create", "--tenant", "acme", "--name", "third")
	if code := k.run("keys", "revoke", "-c", k.file, third); code != exitOK { // the whole of it, in a hurry
		k.Error("a key can't be revoked by itself")
	}
	wait(third, 401)
}

// tokens are those of an issuer and of a proxy, good ones and bad ones.
func (k *keeping) tokens() {
	k.Helper()
	serial := 0
	token := func(s *oidctest.Signer, issuer string, more map[string]any) string {
		serial++
		claims := oidctest.Claims(issuer, time.Now())
		claims["org"], claims["jti"] = "acme", serial
		maps.Copy(claims, more)
		text := s.Token(claims)
		parts := strings.Split(text, ".")
		k.secrets.Add(fmt.Sprint("the claims of token ", serial), parts[1])
		k.secrets.Add(fmt.Sprint("the signature of token ", serial), parts[2])
		return text
	}
	stranger := oidctest.NewSigner(k.T, "ES256", "strange")
	ours := k.issuer.Issuer()
	good := token(k.signer, ours, nil)
	_, rest, _ := strings.Cut(token(k.signer, ours, nil), ".")
	for _, c := range []struct {
		credential string
		status     int
	}{
		{good, 200}, {good, 200},
		{token(k.signer, ours, map[string]any{"exp": time.Now().Unix() - 3600}), 401},
		{token(k.signer, ours, map[string]any{"nbf": time.Now().Unix() + 3600}), 401},
		{token(k.signer, ours, map[string]any{"aud": "others"}), 401},
		{token(k.signer, ours, map[string]any{"exp": "tomorrow"}), 401},
		{token(k.signer, ours, map[string]any{"org": "nobody"}), 401},
		{token(k.signer, ours, map[string]any{"org": nil}), 401},
		{token(k.signer, ours, map[string]any{"groups": manyGroups()}), 403},
		{token(k.signer, "https://elsewhere.example", nil), 401},
		{token(stranger, ours, nil), 401},
		{base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + rest, 401},
		{base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":["x"]}`)) + "." + rest, 401},
		{good[:len(good)-20], 401},
	} {
		k.send(c.status, "POST", chatPath, chat(false, ""), "Authorization", "Bearer "+c.credential)
	}
	k.send(401, "POST", chatPath, chat(false, ""), "Authorization", "Bearer "+good, "X-Api-Key", k.d.keys["acme"])
	k.send(401, "POST", chatPath+"?access_token="+good, chat(false, ""))
	word := token(k.edge, "edge", map[string]any{"exp": time.Now().Unix() + 30})
	k.send(200, "POST", chatPath, chat(false, ""), "X-Sluice-Identity", word)
	k.send(401, "POST", chatPath, chat(false, ""), "X-Sluice-Identity", word[:len(word)-20])
	k.send(401, "POST", chatPath, chat(false, ""), "X-Sluice-Identity", good)
	k.send(401, "POST", chatPath, chat(false, ""), "X-Sluice-Identity", word, "Authorization", k.auth("acme"))
	k.issuer.Down()
	k.send(200, "POST", chatPath, chat(false, ""), "Authorization", "Bearer "+token(k.signer, ours, nil))
	k.send(401, "POST", chatPath, chat(false, ""), "Authorization", "Bearer "+token(stranger, ours, nil))
}

// badCredentials sends all that is no credential or is not one's own, and true
// ones where none belong.
func (k *keeping) badCredentials() {
	k.Helper()
	good := k.d.keys["acme"]
	id := strings.TrimSuffix(good, strings.SplitN(good, "_", 3)[2])
	forged := marked("forged")
	k.secrets.Add("a wrong secret", forged)
	k.secrets.Add("a password", marked("basic-password"))
	k.secrets.Add("a token", marked("token"))
	basic := base64.StdEncoding.EncodeToString([]byte("user:" + marked("basic-password")))
	for _, header := range [][]string{
		{},
		{"Authorization", "Bearer " + id + forged},
		{"Authorization", "Bearer slk_nobody_" + forged},
		{"Authorization", "Bearer " + good[:40]},
		{"Authorization", "Bearer " + good + "x"},
		{"Authorization", "Bearer " + strings.ToLower(good)},
		{"Authorization", "Bearer " + good + " " + good},
		{"Authorization", good},
		{"Authorization", "Basic " + basic},
		{"Authorization", "Digest " + good},
		{"Authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0." + marked("token")},
		{"Authorization", "Bearer " + marked("token")},
		{"Authorization", "Bearer " + good, "X-Api-Key", k.d.keys["globex"]},
		{"Authorization", "Bearer " + good, "Authorization", "Bearer " + good},
		{"X-Api-Key", forged, "Api-Key", good},
		{"Proxy-Authorization", "Bearer " + good},
		{"Cookie", "session=" + good},
		{"X-Sluice-Identity", marked("token")},
	} {
		k.send(401, "POST", chatPath, chat(false, ""), header...)
	}
	k.send(0, "POST", chatPath, chat(false, ""), "Authorization", "Bearer "+strings.Repeat(good, 1000))
	k.send(401, "POST", chatPath+"?api_key="+good, chat(false, ""))
	k.send(404, "GET", "/v1/"+good, "", "Authorization", k.auth("acme"))
	k.send(0, "GET", "/"+good+"/v1/models?key="+good, "")
	k.send(200, "POST", chatPath+"?api_key="+good, chat(false, ""), "Authorization", k.auth("acme"), "Cookie", good, "X-Forwarded-For", good, "Referer", "https://a/?"+good)
}

// badRequests are those of callers who are known, with mistakes.
func (k *keeping) badRequests() {
	k.Helper()
	auth := k.auth("acme")
	for status, bodies := range map[int][]string{
		400: {
			chat(false, "")[:80], `{"model":"demo-chat","messages":` + fmt.Sprintf("%q", marked("prompt")) + `}`,
			chat(false, `,"api_key":"`+k.d.keys["acme"]), chat(false, `,"n":99`), chat(false, `,"max_tokens":"`+k.d.keys["acme"]+`"`), "[]", "",
		},
		404: {`{"model":"nobody-has-this","messages":[]}`},
		413: {chat(false, `,"metadata":"`+strings.Repeat(k.d.keys["acme"], 2000)+`"`)},
	} {
		for _, body := range bodies {
			k.send(status, "POST", chatPath, body, "Authorization", auth)
		}
	}
	k.send(200, "POST", chatPath, chat(false, `,"metadata":{"key":"`+k.d.keys["acme"]+`"}`), "Authorization", auth)
	tools := `,"tools":[{"type":"function","function":{"name":"shell","parameters":{"type":"object"}}}]`
	k.send(403, "POST", chatPath, chat(false, tools), "Authorization", k.auth("initech"))
	for range 20 {
		k.send(0, "POST", chatPath, chat(true, ""), "Authorization", k.auth("initech")) // until it is limited
	}
	k.send(405, "PUT", chatPath, "", "Authorization", auth)
	k.send(200, "POST", chatPath, chat(false, ""), "Authorization", auth, "X-Request-Id", k.d.keys["acme"])
	public, _, _ := k.child.addresses()
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\nAuthorization: " + auth + "\r\n\r\n",
		"POST " + chatPath + " HTTP/1.1\r\nHost: a\r\nAuthorization: " + auth + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"POST " + chatPath + " HTTP/1.1\r\nHost: a\r\nAuthorization: " + auth + "\r\nContent-Length: -5\r\n\r\n",
		"POST " + chatPath + " HTTP/1.1\r\nHost: a\r\nAuthorization:\x00" + auth + "\r\n\r\n",
		"\x16\x03\x01" + auth, auth + "\r\n\r\n",
	} {
		c := gatewaytest.DialTLS(k.T, public, k.cert.Client)
		if err := c.Write(text); err != nil {
			continue
		}
		_ = c.HalfClose()
		fmt.Fprintln(&k.answers, c.Closed())
	}
	clear := gatewaytest.Dial(k.T, public) // no TLS
	if clear.Write(gatewaytest.RequestText("GET", "/v1/models", "", "Authorization: "+auth)) == nil {
		fmt.Fprintln(&k.answers, clear.Closed())
	}
}

// badWorkers lets workers fail in every way there is.
func (k *keeping) badWorkers() {
	k.Helper()
	for _, f := range []simworker.Fault{
		{Status: 500}, {Status: 503}, {Status: 401}, {Status: 400}, {Status: 404}, {HangHeaders: true}, {DropAfterEvents: -1}, {DropAfterEvents: 2},
		{MalformedEvent: true}, {NoDone: true}, {FirstByteDelay: 1500 * time.Millisecond}, {Stall: 1500 * time.Millisecond},
	} {
		for _, w := range k.d.workers {
			w.SetFault(f)
		}
		for _, stream := range []bool{false, true} {
			k.send(0, "POST", chatPath, chat(stream, ""), "Authorization", k.auth("acme"))
		}
		k.leave()
	}
	for _, w := range k.d.workers {
		w.SetFault(simworker.Fault{})
	}
	k.child.waitReady(k.T)
}

// leave is a client that goes away.
func (k *keeping) leave() {
	public, _, _ := k.child.addresses()
	c := gatewaytest.DialTLS(k.T, public, k.cert.Client)
	c.Send("POST", chatPath, strings.Replace(chat(true, ""), `"max_tokens":5`, `"max_tokens":500`, 1), "Authorization: "+k.auth("globex"))
	c.Leave(gatewaytest.RST)
}

// badBooks takes the ledger's database away for a while.
func (k *keeping) badBooks() {
	k.Helper()
	k.server.Kill()
	k.ask()
	if err := k.server.Start(); err != nil {
		k.Fatal(err)
	}
	soon(k.T, "the spool to be empty", childPatience, func() bool { return k.child.metric(k.T, "sluice_ledger_spool_bytes") == 0 })
}
