package openai

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sluicegate/sluice/gateway/jsonscan"
)

// Model is one model of the models list.
type Model struct {
	// ID is the name clients use.
	ID string
	// Created is when the model was first configured, in Unix seconds.
	Created int64
	// MaxModelLen is the context length in tokens, 0 when unknown.
	MaxModelLen int64
}

// AppendModels appends the answer to GET /v1/models to dst: the models, sorted
// by id. It does not change models.
func AppendModels(dst []byte, models []Model) []byte {
	byID := func(a, b Model) int { return cmp.Compare(a.ID, b.ID) }
	if !slices.IsSortedFunc(models, byID) {
		models = slices.SortedFunc(slices.Values(models), byID)
	}
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, m)
	}
	return append(dst, `]}`...)
}

// AppendModel appends the answer to GET /v1/models/{id} to dst. A context
// length that is not known is null.
func AppendModel(dst []byte, m Model) []byte {
	dst = append(dst, `{"id":`...)
	dst = jsonscan.AppendQuoted(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"owned_by":"sluice","max_model_len":`...)
	if m.MaxModelLen > 0 {
		dst = strconv.AppendInt(dst, m.MaxModelLen, 10)
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, '}')
}
