package main

import (
	"fmt"
	"regexp"
)

// listenNamePattern is a name that a listener may be called by.
var listenNamePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)

// admin checks the operator's listener, whose address is one.
func (v *validator) admin() {
	l := &v.cfg.Listen.Admin
	local := isLoopback(l.Address)
	if l.TokenFile == "" && !local {
		v.errorf("listen.admin.address", "%q can be reached from other machines; give listen.admin.tokenFile, or use a loopback address", l.Address)
	}
	if !local && !l.TLS.Enabled() {
		v.warnf("listen.admin.address", "%q can be reached from other machines without TLS: the admin token crosses the network in clear text; give listen.admin.tls", l.Address)
	}
	if l.MetricsOpen && !local {
		v.warnf("listen.admin.metricsOpen", "whoever reaches %q may read what tenants use and spend", l.Address)
	}
	for i, name := range l.Hosts {
		v.matching(fmt.Sprintf("listen.admin.hosts[%d]", i), name, listenNamePattern, "the name of a host, without a port")
	}
	v.tls("listen.admin.tls", l.TLS)
}
