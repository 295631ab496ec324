package anthropic

import (
	"time"

	"github.com/sluicegate/sluice/gateway/jsonscan"
)

// Model is one model of the models list.
type Model struct {
	// ID is the name clients use, which is shown to people too.
	ID string
	// Created is when the model was first configured, in Unix seconds.
	Created int64
}

// Page is what a client wants of the models list.
type Page struct {
	// Limit is the most models of a page; 0: all.
	Limit int
	// After and Before are ids of models: of the first the page follows, of the
	// second it comes before. An id of no model that the client may see is passed
	// over. With both, After counts.
	After, Before string
}

// cut returns the models of the page, and whether there are more in its direction.
func (p Page) cut(models []Model) (page []Model, more bool) {
	for i, m := range models {
		if m.ID == p.After && p.After != "" {
			models = models[i+1:]
			break
		}
		if m.ID == p.Before && p.After == "" && p.Before != "" {
			models = models[:i]
			if over := len(models) - p.Limit; p.Limit > 0 && over > 0 {
				return models[over:], true
			}
			return models, false
		}
	}
	if p.Limit > 0 && len(models) > p.Limit {
		return models[:p.Limit], true
	}
	return models, false
}

// AppendModels appends the answer to GET /v1/models to dst: a page of the models,
// which are sorted by id.
func AppendModels(dst []byte, models []Model, p Page) []byte {
	page, more := p.cut(models)
	dst = append(dst, `{"data":[`...)
	for i, m := range page {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, m)
	}
	dst = append(dst, `],"has_more":`...)
	if more {
		dst = append(dst, "true"...)
	} else {
		dst = append(dst, "false"...)
	}
	var first, last string
	if len(page) > 0 {
		first, last = page[0].ID, page[len(page)-1].ID
	}
	dst = jsonscan.AppendQuotedOrNull(append(dst, `,"first_id":`...), first)
	dst = jsonscan.AppendQuotedOrNull(append(dst, `,"last_id":`...), last)
	return append(dst, '}')
}

// AppendModel appends the answer to GET /v1/models/{id} to dst.
func AppendModel(dst []byte, m Model) []byte {
	dst = jsonscan.AppendQuoted(append(dst, `{"type":"model","id":`...), m.ID)
	dst = jsonscan.AppendQuoted(append(dst, `,"display_name":`...), m.ID)
	dst = append(dst, `,"created_at":"`...)
	dst = time.Unix(m.Created, 0).UTC().AppendFormat(dst, time.RFC3339)
	return append(dst, `"}`...)
}
