package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// RemoteOptions bounds a Remote. The zero value is usable.
type RemoteOptions struct {
	// Timeout bounds one call, all of it. 0 means 2 s.
	Timeout time.Duration
	// MaxAnswer bounds the answer in bytes. 0 means 32 MiB, room for some four
	// million ids.
	MaxAnswer int64
	// APIKey is sent as a bearer token when it is not empty.
	APIKey string
	// Client makes the calls. Nil means one of Remote's own, which neither uses a
	// proxy nor follows redirects.
	Client *http.Client
}

// Remote computes token ids by asking a worker's /tokenize. It is the way out
// for a model without a verified local tokenizer. It is safe for concurrent use.
type Remote struct {
	opts   RemoteOptions
	client *http.Client
}

// StatusError tells that a worker refused to tokenise. The worker's own message
// is left out because it may quote the prompt.
type StatusError struct {
	// Code is the HTTP status. 400 means that the engine would refuse the request
	// itself as well.
	Code int
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("worker answered /tokenize with %d %s", e.Code, http.StatusText(e.Code))
}

// NewRemote returns a client with the given bounds.
func NewRemote(opts RemoteOptions) *Remote {
	if opts.Timeout <= 0 {
		opts.Timeout = 2 * time.Second
	}
	if opts.MaxAnswer <= 0 {
		opts.MaxAnswer = 32 << 20
	}
	client := opts.Client
	if client == nil {
		client = &http.Client{
			Transport: &http.Transport{
				MaxIdleConnsPerHost: 16,
				// Below the five seconds for which the engines' HTTP server keeps an
				// idle connection.
				IdleConnTimeout: 4 * time.Second,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Remote{opts: opts, client: client}
}

// Append adds the prompts of body to dst, as the worker at baseURL tokenises
// them for model, which is the name that worker serves the model under. Prompts
// that are token ids already are added without a call; a list of texts costs one
// call each. On an error dst is as before.
//
// Errors: ErrInvalid for a body that is no request of its kind, ErrUnsupported
// for a prompt /tokenize cannot express, *StatusError when the worker refuses,
// the context's error when ctx ends; everything else is a failed call or an
// answer that is none.
func (r *Remote) Append(ctx context.Context, baseURL, model string, dst *Prompts, kind Kind, body []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return fmt.Errorf("cannot tokenise remotely: %w: not a JSON object", ErrInvalid)
	}
	endpoint, err := url.JoinPath(baseURL, "tokenize")
	if err != nil {
		return fmt.Errorf("cannot tokenise remotely: worker address is no URL")
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()

	ids, ends := len(dst.IDs), len(dst.Ends)
	switch kind {
	case Chat:
		err = r.appendChat(ctx, endpoint, model, dst, fields)
	case Completion:
		err = r.appendCompletion(ctx, endpoint, model, dst, fields)
	default:
		panic("BUG: tokenize: unknown kind of request")
	}
	if err != nil {
		dst.IDs, dst.Ends = dst.IDs[:ids], dst.Ends[:ends]
		return fmt.Errorf("cannot tokenise remotely: %w", err)
	}
	return nil
}

// appendChat sends what /tokenize understands of a chat body. Fields that only
// the chat endpoint has, but that reach the template as variables, travel among
// the template's variables.
func (r *Remote) appendChat(ctx context.Context, endpoint, model string, dst *Prompts, fields map[string]json.RawMessage) error {
	if isNull(fields["messages"]) {
		return fmt.Errorf("%w: messages: missing; send a list of messages", ErrInvalid)
	}
	ask := map[string]json.RawMessage{}
	for _, name := range []string{
		"messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
		"chat_template", "media_io_kwargs", "mm_processor_kwargs",
	} {
		if v, ok := fields[name]; ok {
			ask[name] = v
		}
	}
	kwargs := map[string]json.RawMessage{}
	if v := fields["chat_template_kwargs"]; !isNull(v) {
		if err := json.Unmarshal(v, &kwargs); err != nil {
			return fmt.Errorf("%w: chat_template_kwargs: must be an object", ErrInvalid)
		}
	}
	if v := fields["documents"]; !isNull(v) {
		kwargs["documents"] = v
	}
	if v := fields["reasoning_effort"]; !isNull(v) {
		kwargs["reasoning_effort"] = v
		if _, ok := kwargs["enable_thinking"]; !ok {
			kwargs["enable_thinking"] = json.RawMessage("true")
			if string(v) == `"none"` {
				kwargs["enable_thinking"] = json.RawMessage("false")
			}
		}
	}
	if len(kwargs) > 0 {
		ask["chat_template_kwargs"] = mustMarshal(kwargs)
	}
	return r.call(ctx, endpoint, model, ask, dst)
}

// appendCompletion sends one call per text and none for token ids.
func (r *Remote) appendCompletion(ctx context.Context, endpoint, model string, dst *Prompts, fields map[string]json.RawMessage) error {
	if !isNull(fields["prompt_embeds"]) {
		return fmt.Errorf("%w: prompt_embeds", ErrUnsupported)
	}
	texts, ids, err := completionPrompts(fields["prompt"])
	if err != nil {
		return err
	}
	for _, p := range ids {
		dst.IDs = append(dst.IDs, p...)
		dst.end()
	}
	for _, text := range texts {
		ask := map[string]json.RawMessage{"prompt": text}
		if v, ok := fields["add_special_tokens"]; ok {
			ask["add_special_tokens"] = v
		}
		if err := r.call(ctx, endpoint, model, ask, dst); err != nil {
			return err
		}
	}
	return nil
}

// completionPrompts reads the four forms of a completions prompt. Texts stay
// the JSON they were.
func completionPrompts(raw json.RawMessage) (texts []json.RawMessage, ids [][]uint32, err error) {
	switch raw = bytes.TrimSpace(raw); {
	case isNull(raw):
		return nil, nil, fmt.Errorf("%w: prompt: missing; send a text, a list of texts or token ids", ErrInvalid)
	case raw[0] == '"':
		return []json.RawMessage{raw}, nil, nil
	case raw[0] != '[':
		return nil, nil, fmt.Errorf("%w: prompt: must be a text, a list of texts or token ids", ErrInvalid)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		return nil, nil, fmt.Errorf("%w: prompt: an empty list has no prompt", ErrInvalid)
	}
	var one []uint32
	switch list[0][0] {
	case '"':
		for i, item := range list {
			if item[0] != '"' {
				return nil, nil, fmt.Errorf("%w: prompt[%d]: must be a text, like prompt[0]", ErrInvalid, i)
			}
		}
		return list, nil, nil
	case '[':
		err = json.Unmarshal(raw, &ids)
	default:
		err = json.Unmarshal(raw, &one)
		ids = [][]uint32{one}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: prompt: token ids must be integers from 0 to 4294967295", ErrInvalid)
	}
	return nil, ids, nil
}

// call posts one question and appends the answer's ids as one prompt.
func (r *Remote) call(ctx context.Context, endpoint, model string, ask map[string]json.RawMessage, dst *Prompts) error {
	ask["model"] = mustMarshal(model)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(mustMarshal(ask)))
	if err != nil {
		return errors.New("worker address is no URL")
	}
	req.Header.Set("Content-Type", "application/json")
	if r.opts.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+r.opts.APIKey)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("cannot reach the worker: %w", err)
	}
	defer resp.Body.Close()

	body := io.LimitReader(resp.Body, r.opts.MaxAnswer+1)
	if resp.StatusCode != http.StatusOK {
		// What is left of a short answer is read so that the connection can be
		// used again.
		_, _ = io.Copy(io.Discard, io.LimitReader(body, 64<<10))
		return &StatusError{Code: resp.StatusCode}
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("cannot read the worker's answer: %w", err)
	}
	if int64(len(data)) > r.opts.MaxAnswer {
		return fmt.Errorf("worker's answer is longer than the %d bytes allowed", r.opts.MaxAnswer)
	}
	var answer struct {
		Count  *int      `json:"count"`
		Tokens *[]uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(data, &answer); err != nil || answer.Tokens == nil {
		return errors.New("worker's answer has no list of tokens")
	}
	if answer.Count != nil && *answer.Count != len(*answer.Tokens) {
		return fmt.Errorf("worker's answer counts %d tokens and lists %d", *answer.Count, len(*answer.Tokens))
	}
	dst.IDs = append(dst.IDs, *answer.Tokens...)
	dst.end()
	return nil
}

// isNull tells whether a field is absent or null.
func isNull(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}

// mustMarshal encodes values that cannot fail to encode: strings, and JSON that
// was read before.
func mustMarshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic("BUG: tokenize: cannot encode a request for /tokenize: " + err.Error())
	}
	return data
}
