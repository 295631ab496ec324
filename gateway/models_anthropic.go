package gateway

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/anthropic"
)

func (m *Model) anthropicListing() anthropic.Model {
	return anthropic.Model{ID: m.Name, Created: m.Created}
}

// maxPage is the most models of a page that the API lets clients ask for.
const maxPage = 1000

// modelsPage reads the page that a client of the Messages API wants.
func modelsPage(ctx *fasthttp.RequestCtx) (anthropic.Page, *rejection) {
	q := ctx.QueryArgs()
	p := anthropic.Page{After: string(q.Peek("after_id")), Before: string(q.Peek("before_id"))}
	if limit := q.Peek("limit"); len(limit) > 0 {
		n, err := strconv.Atoi(string(limit))
		if err != nil || n < 1 || n > maxPage {
			return p, invalid("invalid_request", "limit", "limit must be a whole number from 1 to 1000")
		}
		p.Limit = n
	}
	return p, nil
}

// appendModelsPage appends the models list in the form of the Messages API.
func (ex *exchange) appendModelsPage(dst []byte, p anthropic.Page) []byte {
	var list []anthropic.Model
	for _, m := range ex.st.Models.sorted {
		if m.allowed(ex.principal) {
			list = append(list, m.anthropicListing())
		}
	}
	return anthropic.AppendModels(dst, list, p)
}
