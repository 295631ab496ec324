package mtls

import (
	"crypto/x509"
	"errors"
	"strings"
)

const (
	// maxSPIFFEID is the longest SPIFFE id that policies take.
	maxSPIFFEID    = 512
	maxTrustDomain = 255
	spiffeScheme   = "spiffe://"
)

var (
	errSPIFFE     = errors.New("it is no SPIFFE id of the form spiffe://trust-domain/path")
	errManyURIs   = errors.New("the certificate has a SPIFFE id and another URI, and must have one URI alone")
	errSigning    = errors.New("the certificate with a SPIFFE id is one that signs others")
	errLongSPIFFE = errors.New("the SPIFFE id is longer than 512 bytes")
)

// splitID takes a SPIFFE id apart: the trust domain and the segments of the
// path, of which there may be none.
func splitID(id string) (domain string, segments []string, err error) {
	if len(id) > maxSPIFFEID {
		return "", nil, errLongSPIFFE
	}
	rest, ok := strings.CutPrefix(id, spiffeScheme)
	if !ok {
		return "", nil, errSPIFFE
	}
	domain, path, hasPath := strings.Cut(rest, "/")
	if domain == "" || len(domain) > maxTrustDomain || strings.ContainsFunc(domain, func(r rune) bool { return !domainRune(r) }) {
		return "", nil, errSPIFFE
	}
	if !hasPath {
		return domain, nil, nil
	}
	segments = strings.Split(path, "/")
	for _, s := range segments {
		if s == "" || s == "." || s == ".." || strings.ContainsFunc(s, func(r rune) bool { return !pathRune(r) }) {
			return "", nil, errSPIFFE
		}
	}
	return domain, segments, nil
}

func domainRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_'
}

func pathRune(r rune) bool { return domainRune(r) || r >= 'A' && r <= 'Z' }

// idOf returns the SPIFFE id of a certificate, or nothing if it has none. A
// certificate that has one but not as an X.509-SVID must have it is an error.
func idOf(leaf *x509.Certificate) (string, error) {
	id := ""
	for _, u := range leaf.URIs {
		if strings.EqualFold(u.Scheme, "spiffe") {
			id = u.String()
		}
	}
	switch {
	case id == "":
		return "", nil
	case len(leaf.URIs) > 1:
		return "", errManyURIs
	case leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return "", errSigning
	}
	_, _, err := splitID(id)
	return id, err
}

// idPattern is a SPIFFE id whose path segments may hold '*', for any text within
// the segment, or be "**" at the end, for any segments but at least one.
type idPattern struct {
	domain   string
	segments []string
	open     bool
}

func parsePattern(text string) (idPattern, error) {
	body, open := strings.CutSuffix(text, "/**")
	plain := strings.ReplaceAll(body, "*", "x")
	domain, segments, err := splitID(plain)
	if err != nil {
		return idPattern{}, err
	}
	if i := strings.IndexByte(body, '*'); i >= 0 && i < len(spiffeScheme)+len(domain) {
		return idPattern{}, errors.New("the trust domain of a pattern is literal")
	}
	if strings.Contains(body, "**") {
		return idPattern{}, errors.New("** stands at the end of a pattern, behind a slash, and nowhere else")
	}
	if len(segments) == 0 {
		return idPattern{domain: domain, open: open}, nil
	}
	return idPattern{domain, strings.Split(strings.TrimPrefix(body, spiffeScheme+domain+"/"), "/"), open}, nil
}

func (p idPattern) matches(id string) bool {
	domain, segments, err := splitID(id)
	if err != nil || domain != p.domain || len(segments) < len(p.segments) || !p.open && len(segments) > len(p.segments) || p.open && len(segments) == len(p.segments) {
		return false
	}
	for i, s := range p.segments {
		if !glob(s, segments[i]) {
			return false
		}
	}
	return true
}

// glob matches a text against a pattern in which '*' stands for any text.
func glob(pattern, text string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	for {
		next, more, star := strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(text, next)
		}
		i := strings.Index(text, next)
		if i < 0 {
			return false
		}
		text, rest = text[i+len(next):], more
	}
}
