package verify

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

// Source computes token ids: a tokenizer of this process, or a worker. It adds
// the prompts of body to dst, or leaves dst alone and returns an error.
type Source func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error

// result is what a comparison found.
type result uint8

const (
	// agree: equal ids, or a refusal by both.
	agree result = iota
	// disagree: other ids, or a refusal here of what the engine takes.
	disagree
	// undecided: the engine refuses what would be tokenised here, or the ids can't
	// be computed exactly here and nobody says they can. Neither does harm: there
	// will be no blocks to match in the one case, and no ids to match with in the
	// other.
	undecided
	// unavailable: the engine can't be asked.
	unavailable
	// notOffered: the engine has no such route, so that nothing is compared and
	// nothing is wrong.
	notOffered
)

// compare compares what the two made of one body. at is the index of the first
// id that differs; the ids of a shorter prompt end there.
func compare(local *tokenize.Prompts, localErr error, engine *tokenize.Prompts, engineErr error) (res result, at int) {
	rejected := false
	if localErr != nil {
		if errors.Is(localErr, tokenize.ErrUnsupported) || errors.Is(localErr, context.Canceled) || errors.Is(localErr, context.DeadlineExceeded) {
			return undecided, 0
		}
		_, rendering := errors.AsType[*tokenize.RenderError](localErr)
		rejected = rendering || errors.Is(localErr, tokenize.ErrInvalid)
	}
	if engineErr != nil {
		if status, ok := errors.AsType[*tokenize.StatusError](engineErr); !ok || status.Code != http.StatusBadRequest {
			return unavailable, 0
		}
		if rejected {
			return agree, 0
		}
		return undecided, 0
	}
	if localErr != nil {
		return disagree, 0
	}
	if engine.Length > 0 { // All that is known of it.
		if local.Beginning {
			return undecided, 0
		}
		if len(local.IDs) == engine.Length {
			return agree, 0
		}
		return disagree, min(len(local.IDs), engine.Length)
	}
	if slices.Equal(local.IDs, engine.IDs) && slices.Equal(local.Ends, engine.Ends) {
		return agree, 0
	}
	for at < len(local.IDs) && at < len(engine.IDs) && local.IDs[at] == engine.IDs[at] {
		at++
	}
	return disagree, at
}
