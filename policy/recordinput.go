package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// hashedPrefix marks a value of the record that is a keyed hash of the true
// one. A client that writes such a value itself only makes it unknown.
const hashedPrefix = "hmac:"

// RecordDecision is the type of a [Record] among the lines of a decision log.
const RecordDecision = "decision"

// ReadRecord decodes one line of a decision log that is of the type
// [RecordDecision]. Fields that it does not know are ignored, as the schema
// grows; the record remembers which were there, and which the log has masked or
// erased, so that [Record.AsInput] tells a value from the lack of one. Errors
// name no value of the line.
func ReadRecord(line []byte) (*Record, error) {
	var shape struct {
		Type           string
		Masked, Erased []string
		Input          *struct {
			Now                                 json.RawMessage
			Request, Principal, Tenant, Content map[string]json.RawMessage
		}
	}
	if err := json.Unmarshal(line, &shape); err != nil {
		return nil, plainJSON(err)
	}
	if shape.Type != RecordDecision {
		return nil, errors.New("the line is no decision record")
	}
	hidden := pointers(shape.Masked, shape.Erased)
	if len(shape.Masked) > 0 {
		var err error
		if line, err = without(line, hidden); err != nil {
			return nil, err
		}
	}
	r := &Record{}
	if err := json.Unmarshal(line, r); err != nil {
		return nil, plainJSON(err)
	}
	if r.Verdict != "allow" && r.Verdict != "deny" {
		return nil, errors.New("the record has no verdict, should be allow or deny")
	}
	r.given = map[string]bool{}
	if in := shape.Input; in != nil {
		given := func(name string, value json.RawMessage) {
			r.given[name] = len(value) > 0 && string(value) != "null" // null is a value of nothing that must have one
		}
		given("now", in.Now)
		for space, fields := range map[string]map[string]json.RawMessage{"request": in.Request, "principal": in.Principal, "tenant": in.Tenant, "content": in.Content} {
			for name, value := range fields {
				given(space+"."+name, value)
			}
		}
	}
	for _, p := range hidden {
		if p[0] == "input" {
			r.hidden = append(r.hidden, strings.Join(p[1:], "."))
		}
	}
	return r, nil
}

// plainJSON is an error of encoding/json without what the text held.
func plainJSON(err error) error {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("the line is no JSON: fault at byte %d", syntax.Offset)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return errors.New("the line is no JSON object")
		}
		return fmt.Errorf("field %s is a %s, should be %s", wrong.Field, kindOfJSON(wrong.Value), wrong.Type)
	}
	return errors.New("the line does not decode: a field has a form that the record does not know")
}

// kindOfJSON is the kind of a value without the value that encoding/json adds
// for numbers.
func kindOfJSON(value string) string {
	kind, _, _ := strings.Cut(value, " ")
	return kind
}

// pointers splits JSON pointers (RFC 6901) into their parts.
func pointers(lists ...[]string) [][]string {
	var out [][]string
	for _, p := range slices.Concat(lists...) {
		if rest, ok := strings.CutPrefix(p, "/"); ok {
			parts := strings.Split(rest, "/")
			for i, part := range parts {
				parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
			}
			out = append(out, parts)
		}
	}
	return out
}

// without takes the values at the paths out of a JSON object: what masks have
// left there need not have the form of the field. Inside a list the whole list
// goes.
func without(line []byte, paths [][]string) ([]byte, error) {
	var root map[string]any
	d := json.NewDecoder(strings.NewReader(string(line)))
	d.UseNumber()
	if err := d.Decode(&root); err != nil {
		return nil, plainJSON(err)
	}
	for _, path := range paths {
		at := root
		for i, name := range path {
			next, ok := at[name].(map[string]any)
			if i == len(path)-1 || !ok {
				delete(at, name)
				break
			}
			at = next
		}
	}
	out, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("the record does not encode: %w", err)
	}
	return out, nil
}

// AsInput is the request as the record tells it, for a set to judge anew. Absent
// names the variables that the record lacks or holds as a keyed hash, masked or
// erased: reading one is an evaluation error of the kind [ErrorAbsent], never a
// guess. An optional variable that is not in the record was absent from the
// request; of a claim that is known only of those that were declared when the
// record was written. A header that is not in the record counts as not sent.
func (r *Record) AsInput(s *Set) *Input {
	q, p, t := &r.Input.Request, &r.Input.Principal, &r.Input.Tenant
	in := &Input{
		Now: r.Input.Now, DeclaredLabels: r.Input.Content.DeclaredLabels, Absent: map[string]bool{}, Lazy: (*recordedLazy)(r),
		Tenant: TenantInput{ID: t.ID, Team: t.Team, Tier: t.Tier, Labels: t.Labels},
		Principal: PrincipalInput{
			Kind: p.Kind, ID: p.ID, Subject: p.Subject, Issuer: p.Issuer, Groups: p.Groups, Scopes: p.Scopes,
			KeyID: p.KeyID, SPIFFEID: p.SPIFFEID, Claims: p.Claims,
		},
		Request: RequestInput{
			Operation: q.Operation, Dialect: q.Dialect, Method: q.Method, Path: q.Path,
			Model: q.Model, RequestedModel: q.RequestedModel, ModelFamily: q.ModelFamily, Stream: q.Stream, N: q.N, Prompts: q.Prompts, MaxTokens: q.MaxTokens,
			LearnedOutput: q.LearnedOutput, InputTokensEstimate: q.InputTokensEstimate, BodyBytes: q.BodyBytes, MessageCount: q.MessageCount, ImageCount: q.ImageCount,
			ToolNames: q.ToolNames, Modalities: q.Modalities, Headers: q.Headers, SourceIP: q.SourceIP,
			SessionID: optionalText(q.SessionID), User: optionalText(q.User),
		},
	}
	for _, v := range slices.Concat(requestVariables(), identityVariables()) {
		if r.lacks(v) {
			in.Absent[v.name] = true
		}
	}
	if r.hides(learnedOutput) {
		in.Absent[learnedOutput] = true
	}
	for name := range s.cfg.Claims {
		full := "principal.claims." + name
		if _, given := p.Claims[name]; !given || r.hides(full) {
			in.Absent[full] = true
		}
	}
	return in
}

func optionalText(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// lacks reports whether the record does not say what a variable's value was.
func (r *Record) lacks(v variable) bool {
	q := &r.Input.Request
	switch v.name {
	case "request.input_tokens", "request.input_tokens_exact":
		return q.InputTokens == nil || q.InputTokensExact == nil || r.hides(v.name)
	case "content.labels", "content.findings", "content.detectors", "content.scan_status":
		return r.Input.Content.ScanStatus == "" || r.hides(v.name)
	case "request.user":
		return strings.HasPrefix(q.User, hashedPrefix) || r.hides(v.name)
	case "request.session_id":
		return strings.HasPrefix(q.SessionID, hashedPrefix) || r.hides(v.name)
	case "request.source_ip":
		return q.SourceIP == "" || strings.HasPrefix(q.SourceIP, hashedPrefix) || r.hides(v.name)
	}
	optional := v.typ.TypeName() == "optional_type"
	return r.given != nil && !r.given[v.name] && !optional || r.hides(v.name)
}

// hides reports whether a variable, a part of it or all of its kind was masked
// or erased.
func (r *Record) hides(name string) bool {
	return slices.ContainsFunc(r.hidden, func(path string) bool {
		return path == "" || path == name || strings.HasPrefix(path, name+".") || strings.HasPrefix(name, path+".")
	})
}

// recordedLazy gives what the decision had resolved.
type recordedLazy Record

// InputTokens implements Lazy.
func (r *recordedLazy) InputTokens(context.Context) (int64, bool, error) {
	q := &r.Input.Request
	if q.InputTokens == nil || q.InputTokensExact == nil {
		return 0, false, errors.New("the record does not hold it")
	}
	return *q.InputTokens, *q.InputTokensExact, nil
}

// Content implements Lazy.
func (r *recordedLazy) Content(context.Context) (Content, error) {
	c := &r.Input.Content
	if c.ScanStatus == "" {
		return Content{}, errors.New("the record holds no scan")
	}
	return Content{Labels: c.Labels, Findings: c.Findings, Detectors: c.Detectors, ScanStatus: c.ScanStatus}, nil
}
