package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sluicegate/sluice/gateway"
)

// CORSConfig says for which web pages a browser may call. Without origins nothing of CORS is in any answer.
type CORSConfig struct {
	Origins []string      `yaml:"origins"` // as browsers write them, to the letter
	MaxAge  time.Duration `yaml:"maxAge"`  // how long a browser may remember a preflight
}

func defaultCORS() CORSConfig { return CORSConfig{MaxAge: 10 * time.Minute} }

// edge returns what the gateway makes of it.
func (c *CORSConfig) edge() gateway.CORS { return gateway.CORS{Origins: c.Origins, MaxAge: c.MaxAge} }

// maxOrigins bounds the list that every request's origin is looked for in.
const maxOrigins = 100

func (v *validator) cors() {
	c := &v.cfg.CORS
	if len(c.Origins) > maxOrigins {
		v.errorf("cors.origins", "lists %d origins, should be at most %d", len(c.Origins), maxOrigins)
	}
	for i, origin := range c.Origins {
		if !isOrigin(origin) {
			v.errorf(fmt.Sprintf("cors.origins[%d]", i), "%q is no origin, should be a scheme, a host in lower case and, unless it is the scheme's own, a port, as in https://app.example; there are no patterns", clip(origin))
		}
	}
	if c.MaxAge != 0 {
		v.duration("cors.maxAge", c.MaxAge, time.Second, 24*time.Hour)
	}
}

// isOrigin reports whether a browser may write a page's origin so.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.ToLower(text) != text || strings.ContainsAny(u.Host, "*%_") {
		return false
	}
	if p := u.Port(); p == "80" && u.Scheme == "http" || p == "443" && u.Scheme == "https" || strings.HasSuffix(u.Host, ":") {
		return false // browsers leave it out
	}
	return text == u.Scheme+"://"+u.Host
}
