package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/anthropic"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/tenancy"
)

// Model is a model as clients see it.
type Model struct {
	// Name is what clients ask for and what is listed, priced and logged.
	Name string
	// Aliases are further names that clients may ask for; they aren't listed.
	Aliases []string
	// Upstream is the name its workers serve it under.
	Upstream string
	// LoRA is the engine's name of the adapter that the model is; empty for a
	// model of its own.
	LoRA string
	// Family groups models in policies; it may be empty.
	Family string
	// ContextLength is in tokens; zero means unknown.
	ContextLength int
	// DefaultMaxTokens stands in for a missing max_tokens.
	DefaultMaxTokens int64
	// BytesPerToken turns text bytes into an estimate of tokens.
	BytesPerToken float64
	// Created is the Unix time shown in listings.
	Created int64
}

// Estimate is the number of tokens that the prompts of a scanned body come to
// at a ratio of bytes to tokens; at least one.
func (m *Model) Estimate(req *wire.Request, bytesPerToken float64) int {
	return max(int(float64(req.TextBytes)/bytesPerToken+0.5)+req.ImageCount*imageTokens+req.TokenIDs, 1)
}

// imageTokens is the fixed count that an image adds to an estimate: a common
// order of size for vision models, which range from a few hundred to a few
// thousand tokens an image.
const imageTokens = 576

// Models is the set of models; it does not change once built.
type Models struct {
	byName map[string]*Model // aliases too
	sorted []*Model
}

// NewModels indexes models by name and alias. Two models may not share one.
func NewModels(list []Model) (*Models, error) {
	m := &Models{byName: make(map[string]*Model)}
	for i := range list {
		model := &list[i]
		if model.BytesPerToken <= 0 {
			return nil, fmt.Errorf("model %q: bytes per token must be above zero, not %v", model.Name, model.BytesPerToken)
		}
		for _, name := range append([]string{model.Name}, model.Aliases...) {
			if other := m.byName[name]; other != nil {
				return nil, fmt.Errorf("models %q and %q both answer to %q", other.Name, model.Name, name)
			}
			m.byName[name] = model
		}
		m.sorted = append(m.sorted, model)
	}
	slices.SortFunc(m.sorted, func(a, b *Model) int { return strings.Compare(a.Name, b.Name) })
	return m, nil
}

// find returns the model that the caller may use under that name, or nil: an
// unknown and a forbidden model look the same.
func (m *Models) find(name string, p *tenancy.Principal) *Model {
	model := m.byName[name]
	if model == nil || !model.allowed(p) {
		return nil
	}
	return model
}

// allowed reports whether the caller may use the model: its tenant may, and its
// credential is for it.
func (m *Model) allowed(p *tenancy.Principal) bool {
	return p.Tenant.AllowsModel(m.Name) && p.Scope.AllowsModel(m.Name)
}

// onRecord is what the ledger keeps of a model's name that was refused: the name
// if the configuration has it. Any other is the client's own text, which can be a
// credential pasted into the wrong field, so that a digest stands for it: equal
// names have equal ones, and who suspects a name can compare.
func (m *Models) onRecord(name string) string {
	if m.byName[name] != nil {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:8])
}

func (m *Model) listing() openai.Model {
	return openai.Model{ID: m.Name, Created: m.Created, MaxModelLen: int64(m.ContextLength)}
}

// listModels answers GET /v1/models with what the caller may use now.
func (g *Gateway) listModels(ctx *fasthttp.RequestCtx, ex *exchange) {
	if rej := ex.admitMetadata(ctx); rej != nil {
		ex.reject(ctx, rej)
		return
	}
	if ex.dialect == dialectAnthropic {
		page, rej := modelsPage(ctx)
		if rej != nil {
			ex.reject(ctx, rej)
			return
		}
		ex.answer(ctx, ex.appendModelsPage(nil, page))
		return
	}
	var list []openai.Model
	for _, m := range ex.st.Models.sorted {
		if m.allowed(ex.principal) {
			list = append(list, m.listing())
		}
	}
	ex.answer(ctx, openai.AppendModels(nil, list))
}

// getModel answers GET /v1/models/{id}. The id is the rest of the path,
// unescaped once, since model names may hold a slash.
func (g *Gateway) getModel(ctx *fasthttp.RequestCtx, ex *exchange) {
	rest := targetPath(ctx.Request.Header.RequestURI())[len(modelPrefix):]
	id, err := url.PathUnescape(string(rest))
	if err == nil {
		ex.model = ex.st.Models.find(id, ex.principal)
	}
	if ex.model == nil {
		ex.reject(ctx, modelNotFound())
		return
	}
	if rej := ex.admitMetadata(ctx); rej != nil {
		ex.reject(ctx, rej)
		return
	}
	if ex.dialect == dialectAnthropic {
		ex.answer(ctx, anthropic.AppendModel(nil, ex.model.anthropicListing()))
		return
	}
	ex.answer(ctx, openai.AppendModel(nil, ex.model.listing()))
}
