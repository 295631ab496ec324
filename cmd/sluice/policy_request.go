package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/anthropic"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/policy/policytest"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
)

// maxRequestBytes bounds a file with a request or a decision log to look one up in.
const maxRequestBytes = 64 << 20

// request reads the request to explain: a document of variables or of an HTTP request, or a decision of a
// log, by its id.
func (l *policyLoader) request(ctx context.Context, file, id string, set *policy.Set) (*policy.Input, error) {
	data, err := readBounded(file, maxRequestBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the request: %w", err)
	}
	if isDecisionLog(data) {
		record, err := findRecord(data, id)
		if err != nil {
			return nil, fmt.Errorf("cannot read the request: %s: %w", file, err)
		}
		return record.AsInput(set), nil
	}
	if id != "" {
		return nil, &usageError{"--id chooses a decision of a log, and --request names no log"}
	}
	claims := l.claims()
	dir, name := filepath.Split(file)
	if dir == "" {
		dir = "."
	}
	doc, err := policy.ReadRequest(os.DirFS(dir), name, claims)
	if err != nil {
		return nil, locatedIn(dir, err)
	}
	values := map[string]any{"now": l.now.UTC(), "request.n": int64(1), "content.declared_labels": []string{}}
	keyClaims, err := l.identity(doc, values)
	if err != nil {
		return nil, fmt.Errorf("cannot read the request: %s: %w", file, err)
	}
	prompts := int64(0)
	if doc.HTTP != nil {
		if prompts, err = l.http(ctx, doc.HTTP, values); err == nil {
			err = l.declared(doc, values, keyClaims)
		}
		if err != nil {
			at := doc.HTTP.At
			return nil, fmt.Errorf("cannot read the request: %s:%d:%d: %w", file, at.Line, at.Col, err)
		}
	}
	maps.Copy(values, doc.Values)
	in := policytest.Input(values, claims)
	in.Request.Prompts = prompts
	if err := in.Validate(); err != nil {
		return nil, fmt.Errorf("a gateway refuses the request before any policy: %w", err)
	}
	return in, nil
}

func (l *policyLoader) claims() map[string]string {
	if l.cfg == nil {
		return nil
	}
	return l.cfg.Policy.Claims
}

// isDecisionLog reports whether a file is JSON lines of records.
func isDecisionLog(data []byte) bool {
	line, _, _ := bytes.Cut(bytes.TrimSpace(data), []byte("\n"))
	var head struct {
		Type string  `json:"type"`
		ID   *string `json:"decision_id"`
	}
	return json.Unmarshal(line, &head) == nil && head.Type != "" && head.ID != nil
}

// findRecord returns the decision with an id, or the only one there is.
func findRecord(data []byte, id string) (*policy.Record, error) {
	var found []byte
	n := 0
	for line := range bytes.Lines(data) {
		var head struct {
			Type string `json:"type"`
			ID   string `json:"decision_id"`
		}
		if json.Unmarshal(line, &head) != nil || head.Type != policy.RecordDecision || id != "" && head.ID != id {
			continue
		}
		n++
		found = line
	}
	switch {
	case n == 0 && id != "":
		return nil, fmt.Errorf("the log has no decision %q", clip(id))
	case n == 0:
		return nil, errors.New("the log has no decision")
	case n > 1 && id == "":
		return nil, fmt.Errorf("the log has %d decisions: choose one with --id", n)
	}
	return policy.ReadRecord(found)
}

// identity fills in what the tenants file says of a tenant or a key that is named and described no further.
// It returns all claims of the key.
func (l *policyLoader) identity(doc *policy.RequestDoc, values map[string]any) (claims map[string]any, err error) {
	if l.cfg == nil {
		return nil, nil
	}
	directory, err := authn.LoadFile(l.cfg.Tenants.File)
	if err != nil {
		return nil, err
	}
	id, _ := doc.Values["tenant.id"].(string)
	if key, ok := doc.Values["principal.key_id"].(string); ok {
		k, err := findKey(l.cfg, directory, key)
		if err != nil {
			return nil, err
		}
		id, claims = k.Tenant, k.Claims
		values["principal.kind"], values["principal.id"], values["principal.subject"], values["principal.issuer"] = "api_key", "key:"+k.ID, k.Name, ""
		values["principal.groups"], values["principal.scopes"] = append([]string{}, k.Groups...), append([]string{}, k.Scopes...)
		for name := range l.claims() {
			if claim, given := k.Claims[name]; given {
				values["principal.claims."+name] = claim
			}
		}
	}
	t := directory.Tenant(id)
	if t == nil {
		return claims, nil // a tenant of the document's own
	}
	labels := map[string]string{}
	maps.Copy(labels, t.Labels)
	values["tenant.id"], values["tenant.team"], values["tenant.tier"], values["tenant.labels"] = t.ID, t.Team, t.Tier, labels
	values["content.declared_labels"] = append([]string{}, t.ContentLabels...)
	return claims, nil
}

// labelHeader is where a caller declares labels.
const labelHeader = "x-sluice-content-labels"

// declared adds the labels that the header or the claim of an HTTP request declares, as the gateway does.
// What the document says of its caller counts before what the tenants file says.
func (l *policyLoader) declared(doc *policy.RequestDoc, values, keyClaims map[string]any) error {
	if l.cfg == nil {
		return nil // whom a gateway believes is not known
	}
	caller := maps.Clone(values)
	maps.Copy(caller, doc.Values)
	p := tenancy.Principal{Claims: maps.Clone(keyClaims), Tenant: &tenancy.Tenant{}}
	p.ID, _ = caller["principal.id"].(string)
	p.Tenant.ContentLabels, _ = values["content.declared_labels"].([]string)
	if p.Claims == nil {
		p.Claims = map[string]any{}
	}
	for name := range l.claims() {
		if claim, given := caller["principal.claims."+name]; given {
			p.Claims[name] = claim
		}
	}
	var lines []string
	for name, v := range doc.HTTP.Headers {
		if strings.EqualFold(name, labelHeader) {
			lines = append(lines, v)
		}
	}
	st := gateway.State{LabelPrincipals: l.cfg.Policy.LabelPrincipals, LabelClaim: l.cfg.Labels.Claim}
	labels, _, err := st.DeclaredLabels(&p, lines)
	if err != nil {
		return fmt.Errorf("a gateway refuses the request before any policy: %w", err)
	}
	values["content.declared_labels"] = append([]string{}, labels...)
	return nil
}

// explainedPaths are the paths that a gateway decides about, but for the lists of models.
var explainedPaths = map[string]wire.Operation{
	"/v1/chat/completions":      wire.Chat,
	"/v1/completions":           wire.Completion,
	"/v1/embeddings":            wire.Embeddings,
	"/v1/responses":             wire.Responses,
	"/v1/messages":              wire.Messages,
	"/v1/messages/count_tokens": wire.CountTokens,
	"/tokenize":                 wire.Tokenize,
	"/detokenize":               wire.Detokenize,
}

// scanBody reads a body as the gateway does.
func scanBody(q *wire.Request, op wire.Operation, body []byte) error {
	if dialectOf(op) == "anthropic" {
		return anthropic.Codec{}.Scan(q, op, body)
	}
	return openai.Scan(q, op, body)
}

// dialectOf is whose operation it is, by the policy format's word.
func dialectOf(op wire.Operation) string {
	if op == wire.Messages || op == wire.CountTokens {
		return "anthropic"
	}
	return "openai"
}

// http derives the variables of an HTTP request, as the gateway does before it decides. The prompt's tokens
// are estimated, as they are where no tokenizer is.
func (l *policyLoader) http(ctx context.Context, h *policy.HTTPDoc, values map[string]any) (prompts int64, err error) {
	path, _, _ := strings.Cut(h.Path, "?")
	op, known := explainedPaths[path]
	values["request.dialect"], values["request.method"], values["request.headers"] = dialectOf(op), h.Method, l.headers(h.Headers)
	if path == "/v1/models" || strings.HasPrefix(path, "/v1/models/") {
		if path != "/v1/models" {
			path = "/v1/models/{id}"
		}
		for name := range h.Headers {
			if strings.EqualFold(name, "Anthropic-Version") { // The one case in which a header says whose client it is.
				values["request.dialect"] = "anthropic"
			}
		}
		withoutBody(values, "models", path)
		return 0, nil
	}
	if template, stored := gateway.StoredResponseRoute(path); stored {
		withoutBody(values, "stored_responses", template)
		return 0, nil
	}
	if !known {
		return 0, fmt.Errorf("the gateway has no path %q", clip(path))
	}
	values["request.operation"], values["request.path"] = op.String(), path
	var q wire.Request
	if err := scanBody(&q, op, h.Body); err != nil {
		return 0, fmt.Errorf("a gateway refuses the body before any policy: %w", err)
	}
	model, err := l.model(string(q.Model))
	if err != nil {
		return 0, err
	}
	scanned(values, &q, model, len(h.Body))
	if err := l.content(ctx, op.String(), h.Body, values); err != nil {
		return 0, err
	}
	for name, v := range h.Headers {
		if strings.EqualFold(name, "X-Session-Id") && v != "" {
			values["request.session_id"] = v
		}
	}
	return int64(q.PromptCount), nil
}

// withoutBody sets what policies see of a request that has no body to be read, and so no model.
func withoutBody(values map[string]any, operation, template string) {
	values["request.operation"], values["request.path"] = operation, template
	for _, name := range []string{"model", "requested_model", "model_family"} {
		values["request."+name] = ""
	}
	setContent(values, policy.Content{ScanStatus: "complete"})
}

// content scans a body with the configuration's detectors. Those outside of this process get no text here:
// with one of them the outcome is not known, nor is it without a configuration.
func (l *policyLoader) content(ctx context.Context, operation string, body []byte, values map[string]any) error {
	if l.cfg == nil || len(l.cfg.Labels.External) > 0 {
		return nil
	}
	s, err := newScanner(&l.cfg.Labels, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	found := policy.Content{ScanStatus: "unavailable"}
	if s != nil {
		found = s.Classify(ctx, &gateway.ClassifyRequest{Operation: operation, Body: body, Decode: func([]uint32) (string, bool) { return "", false }})
	}
	setContent(values, found)
	return nil
}

func setContent(values map[string]any, c policy.Content) {
	values["content.labels"], values["content.detectors"] = append([]string{}, c.Labels...), append([]string{}, c.Detectors...)
	values["content.scan_status"] = c.ScanStatus
	findings := map[string]int64{}
	maps.Copy(findings, c.Findings)
	values["content.findings"] = findings
}

// model is the model that a request names.
func (l *policyLoader) model(name string) (*gateway.Model, error) {
	if l.cfg == nil {
		var defaults ModelConfig
		defaults.setDefaults()
		return &gateway.Model{Name: name, BytesPerToken: defaults.BytesPerToken}, nil
	}
	models := gatewayModels(l.cfg, l.now.Unix())
	at := slices.IndexFunc(models, func(m gateway.Model) bool { return m.Name == name || slices.Contains(m.Aliases, name) })
	if at < 0 {
		return nil, fmt.Errorf("a gateway refuses the model %q before any policy: the configuration has none of that name", clip(name))
	}
	return &models[at], nil
}

// headers are those that policies may read: the configuration's, or without one all that carry no
// credential.
func (l *policyLoader) headers(all map[string]string) map[string]string {
	out := map[string]string{}
	for name, v := range all {
		name = strings.ToLower(name)
		allowed := !slices.Contains([]string{"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}, name)
		if l.cfg != nil {
			allowed = slices.Contains(l.cfg.Policy.Headers, name)
		}
		if allowed {
			out[name] = v
		}
	}
	return out
}

// scanned sets what a scan of the body has found.
func scanned(values map[string]any, q *wire.Request, model *gateway.Model, bodyBytes int) {
	tools := []string{}
	for _, name := range q.ToolNames {
		tools = append(tools, string(name))
	}
	estimate := int64(model.Estimate(q, model.BytesPerToken))
	values["request.model"], values["request.requested_model"], values["request.model_family"] = model.Name, string(q.Model), model.Family
	values["request.stream"], values["request.n"] = q.Stream, q.Choices()
	values["request.input_tokens_estimate"], values["request.input_tokens"], values["request.input_tokens_exact"] = estimate, estimate, false
	values["request.body_bytes"], values["request.message_count"], values["request.image_count"] = int64(bodyBytes), int64(q.MessageCount), int64(q.ImageCount)
	values["request.tool_names"], values["request.modalities"] = tools, q.Modalities.AppendNames([]string{})
	if q.MaxTokens != nil {
		values["request.max_tokens"] = *q.MaxTokens
	}
	if q.User != nil {
		values["request.user"] = string(q.User)
	}
}
