package simworker

import (
	"fmt"
	"net/http"
)

// errScaleOutDisabled is what the routes that only render a prompt answer
// without the engine's --enable-scale-out.
var errScaleOutDisabled = &apiError{
	Status: http.StatusForbidden, Kind: "PermissionDeniedError",
	Message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
}

// serveRender answers the token ids of a generating request without doing it:
// an object for a chat, a list of objects for a completion. Member names and
// order are those of the engine 0.32.0; of the sampling parameters only the
// token limit is shown.
func (w *Worker) serveRender(rw http.ResponseWriter, r *http.Request, body []byte, chat bool) {
	if !w.cfg.EnableScaleOut {
		writeError(rw, errScaleOutDisabled)
		return
	}
	p, apiErr := parseParams(body, chat)
	if apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	var ok bool
	if p.model, p.lora, ok = w.resolveModel(p.model); !ok {
		writeError(rw, errUnknownModel(p.model, w.served()))
		return
	}
	prompts, apiErr := w.encode(body, chat)
	if apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	var b []byte
	id := requestID(r, chat)
	for i, ids := range prompts {
		limit, apiErr := p.limit(len(ids), w.cfg.MaxModelLen)
		if apiErr != nil {
			writeError(rw, apiErr)
			return
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = p.appendRendered(b, id, ids, limit)
	}
	if !chat {
		b = append(append([]byte{'['}, b...), ']')
	}
	writeJSON(rw, http.StatusOK, b)
}

// appendRendered appends one prompt as the engine's own generating request.
func (p *params) appendRendered(b []byte, id string, ids []uint32, limit int) []byte {
	b = appendString(append(b, `{"request_id":`...), id)
	b = appendIDs(append(b, `,"token_ids":`...), ids)
	b = append(b, `,"token_offsets":null,"features":null,"content_parts":null,`...)
	b = fmt.Appendf(b, `"sampling_params":{"max_tokens":%d},"model":`, limit)
	b = appendString(b, p.model)
	b = append(b, `,"reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":null,"output_mode":"tokens",`...)
	b = fmt.Appendf(b, `"stream":%t,"stream_options":`, p.stream)
	if p.usage {
		b = fmt.Appendf(b, `{"include_usage":true,"continuous_usage_stats":%t}`, p.continuous)
	} else {
		b = append(b, "null"...)
	}
	b = appendStringOrNull(append(b, `,"cache_salt":`...), p.salt)
	return append(b, `,"priority":0,"kv_transfer_params":null,"ec_transfer_params":null}`...)
}
