package classify

import "bytes"

// field is a key that the walker knows. All others are unknownField, and their
// names are scanned like text.
type field uint8

const (
	unknownField field = iota
	plainField         // a name of the protocols without a meaning here
	modelField
	textField
	contentField
	typeField
	roleField
	promptField
	inputField
	tokensField
	urlField
	dataField
	sourceField
	mediaField     // holds media, or a URL of it: image_url, file_data
	audioField     // input_audio: its data is media
	embedsField    // embeddings in place of text
	referenceField // names content that isn't here: file_id
	responseField  // names an earlier exchange, at the top only
	spokenField    // audio: an answer given before, by its id; settings at the top
	schemaField    // a schema or the settings of a tool
	argumentsField // arguments of a tool call
)

// fieldOf finds a key's meaning. The names are those of the OpenAI and Anthropic
// APIs and of vLLM's additions to them. A key of this list is no content, so it
// isn't scanned: otherwise a keyword such as "system" would be found in
// every body.
func fieldOf(key []byte) field {
	switch string(key) {
	case "model":
		return modelField
	case "text":
		return textField
	case "content":
		return contentField
	case "type":
		return typeField
	case "role":
		return roleField
	case "prompt":
		return promptField
	case "input":
		return inputField
	case "tokens", "token_ids", "prompt_token_ids":
		return tokensField
	case "url":
		return urlField
	case "data":
		return dataField
	case "source":
		return sourceField
	case "image_url", "audio_url", "video_url", "file_url", "file_data":
		return mediaField
	case "input_audio":
		return audioField
	case "prompt_embeds", "image_embeds", "audio_embeds", "video_embeds":
		return embedsField
	case "file_id", "file_ids", "vector_store_ids":
		return referenceField
	case "previous_response_id", "conversation", "previous_input_messages":
		return responseField
	case "audio":
		return spokenField
	case "parameters", "input_schema", "schema", "json_schema", "guided_json", "structured_outputs":
		return schemaField
	case "arguments":
		return argumentsField
	case "messages", "system", "instructions", "tools", "tool_choice", "tool_calls", "function", "name", "description",
		"id", "tool_call_id", "tool_use_id", "call_id", "stream", "stream_options", "max_tokens", "max_completion_tokens",
		"max_output_tokens", "temperature", "top_p", "top_k", "n", "stop", "seed", "user", "metadata", "output",
		"properties", "required", "enum", "items", "reasoning", "reasoning_content", "thinking", "signature",
		"summary", "refusal", "response_format", "detail", "format", "filename", "media_type", "title",
		"cache_control", "documents", "suffix", "query", "modalities", "logprobs", "top_logprobs", "logit_bias", "presence_penalty",
		"frequency_penalty", "repetition_penalty", "min_p", "parallel_tool_calls", "service_tier", "store", "include", "truncation",
		"background", "stop_sequences", "best_of", "echo", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
		"cache_salt", "priority", "session_id", "min_tokens", "ignore_eos", "skip_special_tokens", "budget_tokens", "effort",
		"reasoning_effort", "function_call", "index", "object", "created", "strict", "additionalProperties", "anyOf", "oneOf", "allOf",
		"default", "const", "status", "is_error", "include_usage":
		return plainField
	}
	return unknownField
}

// place is where a value stands.
type place struct {
	key   field // its own, or the one of the list it is an element of
	under field // the one under which the object that holds it stands
	depth int   // open containers
	inert bool
	// element says that it is an element of a list.
	element bool
	part    bool // text of a part, joined with the parts beside it
	list    int  // depth of the list of parts
}

// place returns the place of the value that comes next.
func (w *walker) place() place {
	frames := w.lv.frames
	n := len(frames)
	if n == 0 {
		return place{}
	}
	top := &frames[n-1]
	if top.array {
		return place{key: top.under, depth: n, inert: top.inert, element: true, part: top.under == contentField, list: n}
	}
	p := place{key: top.key, under: top.under, depth: n, inert: top.inert}
	if top.key == textField && n > 1 && frames[n-2].array {
		p.part, p.list = true, n-1
	}
	return p
}

// tokenIDs reports whether a list here may be token ids: the prompt of a
// completion, the input of an embedding, or a list of such.
func (p place) tokenIDs() bool {
	switch p.key {
	case promptField, inputField, tokensField:
		return p.depth == 1 || p.depth == 2 && p.element
	}
	return false
}

// opensInert reports that a container here holds data or a schema of tools.
// input is the conversation at the top, and a tool's arguments below it.
func (p place) opensInert() bool {
	switch p.key {
	case schemaField, argumentsField:
		return true
	case inputField:
		return p.depth > 1 && !(p.depth == 2 && p.element)
	}
	return false
}

// reason is why a value of any kind but null makes the scan partial. c is its
// first byte.
func (p place) reason(c byte) reasons {
	switch p.key {
	case embedsField:
		return byEmbeddings
	case referenceField:
		return byReference
	case responseField:
		if p.depth == 1 {
			return byReference
		}
	case spokenField:
		if p.depth > 1 {
			return byReference
		}
	case promptField:
		if p.depth == 1 && c == '{' {
			return byReference // a stored prompt
		}
	}
	return 0
}

// media reports whether text here may be media. Text that is a data URL is media
// wherever it stands.
func (p place) media(t []byte) bool {
	switch p.key {
	case mediaField, embedsField:
		return true
	case urlField:
		return p.under == mediaField || p.under == sourceField
	case dataField:
		return p.under == audioField || p.under == sourceField
	}
	return hasDataURL(t)
}

func hasDataURL(t []byte) bool { return len(t) > 5 && bytes.EqualFold(t[:5], []byte("data:")) }

// reasonOfText is why a string makes the scan partial.
func (p place) reasonOfText(t []byte) reasons {
	if p.key == typeField && p.depth > 1 {
		return reasonOfType(t, p.under)
	}
	url := p.key == mediaField || p.key == urlField && (p.under == mediaField || p.under == sourceField)
	switch {
	case !url || len(t) == 0:
		return 0
	case hasDataURL(t):
		return byMedia
	}
	return byReference
}

// reasonOfType reads the type of a part. under is the key of the part.
func reasonOfType(t []byte, under field) reasons {
	switch string(t) {
	case "image", "image_url", "input_image", "image_pil", "audio", "audio_url", "input_audio",
		"video", "video_url", "input_video", "file", "input_file":
		return byMedia
	case "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds":
		return byEmbeddings
	case "item_reference":
		return byReference
	case "base64":
		if under == sourceField {
			return byMedia
		}
	case "url":
		if under == sourceField {
			return byReference
		}
	}
	return 0
}

// protocolWord reports whether text is a role or type that the protocols fix,
// which is no more content than their keys are.
func (p place) protocolWord(t []byte) bool {
	if p.key != roleField && p.key != typeField {
		return false
	}
	switch string(t) {
	case "user", "assistant", "system", "developer", "tool", "function", "text", "input_text", "output_text",
		"function_call", "function_call_output", "message", "reasoning", "thinking", "tool_use", "tool_result",
		"image", "image_url", "input_image", "audio_url", "input_audio", "video_url", "file", "input_file", "document",
		"object", "string", "number", "integer", "boolean", "array", "null", "json_object", "json_schema",
		"ephemeral", "base64", "url", "custom", "auto":
		return true
	}
	return false
}

// minMedia is the least base64 text that is left out. Below it text is scanned
// wherever it stands: a card number is base64 text, too.
const minMedia = 256

// leftOut reports whether text in a place of media is base64 and nothing else,
// so that there is nothing in it to find.
func leftOut(t []byte) bool {
	if hasDataURL(t) {
		comma := bytes.IndexByte(t[:min(len(t), 256)], ',')
		if comma < 0 || !bytes.HasSuffix(t[:comma], []byte(";base64")) {
			return false
		}
		t = t[comma+1:]
	}
	if len(t) < minMedia {
		return false
	}
	for len(t) >= 8 {
		if !(base64Byte[t[0]] && base64Byte[t[1]] && base64Byte[t[2]] && base64Byte[t[3]] &&
			base64Byte[t[4]] && base64Byte[t[5]] && base64Byte[t[6]] && base64Byte[t[7]]) {
			return false
		}
		t = t[8:]
	}
	for _, c := range t {
		if !base64Byte[c] {
			return false
		}
	}
	return true
}
