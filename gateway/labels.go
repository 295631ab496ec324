package gateway

import (
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// labelHeader is where a trusted caller declares the labels of its content.
const labelHeader = "X-Sluice-Content-Labels"

// maxClaimLabels is the policy format's maximum for all labels of a request: a claim
// beyond it is the caller's, not the request's.
const maxClaimLabels = 64

// malformedLabel says what a label must look like, never what it was.
const malformedLabel = "a label must be 1 to 63 characters of a-z, 0-9 and inner dashes"

// declaredLabels are those of the request at hand.
func (ex *exchange) declaredLabels(h *fasthttp.RequestHeader) ([]string, *rejection) {
	var values []string
	for _, v := range h.PeekAll(labelHeader) {
		values = append(values, string(v))
	}
	labels, ignored, rej := ex.st.declaredLabels(ex.principal, values)
	if ignored {
		ex.g.parts.Meter.LabelIgnored()
	}
	return labels, rej
}

// DeclaredLabels are the labels known of a request without a scan, sorted and
// without repeats: the tenant's own, those of a listed caller's header, of which
// values are the lines, and those of the configured claim. A source can add labels,
// never take one away. ignored says that the header has no effect, since its sender
// is not listed. The error is the text with which a gateway refuses the request.
func (st *State) DeclaredLabels(p *tenancy.Principal, values []string) (labels []string, ignored bool, err error) {
	labels, ignored, rej := st.declaredLabels(p, values)
	if rej != nil {
		return nil, ignored, rej
	}
	return labels, ignored, nil
}

func (st *State) declaredLabels(p *tenancy.Principal, values []string) (labels []string, ignored bool, rej *rejection) {
	labels = slices.Clone(p.Tenant.ContentLabels)
	if ignored = len(values) > 0 && !slices.Contains(st.LabelPrincipals, p.ID); !ignored {
		if labels, rej = headerLabels(labels, values); rej != nil {
			return nil, false, rej
		}
	}
	if labels, rej = claimLabels(labels, st.LabelClaim, p.Claims); rej != nil {
		return nil, ignored, rej
	}
	slices.Sort(labels)
	return slices.Compact(labels), ignored, nil
}

// headerLabels adds the labels of the header.
func headerLabels(labels, values []string) ([]string, *rejection) {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			part = strings.TrimSpace(part)
			if !validLabel(part) {
				return nil, invalid("invalid_request", "", "header x-sluice-content-labels: "+malformedLabel)
			}
			labels = append(labels, part)
		}
	}
	return labels, nil
}

// claimLabels adds the labels of the configured claim: a list of texts, or a text
// of labels with spaces between them. A token with a label that is none comes from
// an issuer that means something else by the claim, so its bearer is refused
// rather than taken for somebody without labels.
func claimLabels(labels []string, name string, claims map[string]any) ([]string, *rejection) {
	if name == "" {
		return labels, nil
	}
	claim, there := claims[name]
	if !there || claim == nil {
		return labels, nil
	}
	declared, ok := claimTexts(claim)
	if !ok {
		return nil, badLabelClaim("it must be a list of texts, or one text of labels with spaces between them")
	}
	if len(declared) > maxClaimLabels {
		return nil, badLabelClaim("at most 64 labels are allowed")
	}
	for _, label := range declared {
		if !validLabel(label) {
			return nil, badLabelClaim(malformedLabel)
		}
	}
	return append(labels, declared...), nil
}

// claimTexts are the texts of a claim, as decoded from JSON or as an Identifier
// has made it.
func claimTexts(claim any) (texts []string, ok bool) {
	switch v := claim.(type) {
	case string:
		return strings.Fields(v), true
	case []string:
		return v, true
	case []any:
		for _, x := range v {
			s, isText := x.(string)
			if !isText {
				return nil, false
			}
			texts = append(texts, s)
		}
		return texts, true
	}
	return nil, false
}

// badLabelClaim refuses a caller. Which claim holds labels is the operator's
// business, so the answer doesn't name it.
func badLabelClaim(problem string) *rejection {
	return &rejection{
		status: fasthttp.StatusForbidden, kind: "permission_error", code: "policy_denied",
		message: "the credential's claim of content labels can't be used: " + problem, outcome: tenancy.OutcomeDenied,
	}
}

func validLabel(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
