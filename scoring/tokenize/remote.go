package tokenize

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// RemoteOptions bounds a Remote. The zero value is usable.
type RemoteOptions struct {
	// Timeout bounds one Append, all of it. 0 means 1 s.
	Timeout time.Duration
	// Parallel bounds the Appends that ask one worker at the same time. 0 means 16.
	Parallel int
	// MaxTexts bounds the texts of one body, each of which costs a call. 0 means 16.
	MaxTexts int
	// OpenAfter failures in a row stop all calls to a worker, 0 means 5; OpenFor
	// later one call tries whether it answers again, 0 means 10 s.
	OpenAfter int
	OpenFor   time.Duration
	// MaxAnswer bounds the answer in bytes. 0 means 32 MiB, room for some four
	// million ids.
	MaxAnswer int64
	// Client makes the calls. Nil means one of Remote's own, which neither uses a
	// proxy nor follows redirects.
	Client *http.Client
}

// Remote computes token ids by asking a worker's /tokenize. It is the way out
// for a model without a verified local tokenizer. A worker that fails is left
// alone for a while, and one that has enough to answer is not asked for more; both
// fail at once, since a request that waits for its token ids loses more than they
// can save. It is safe for concurrent use.
type Remote struct {
	opts   RemoteOptions
	client *http.Client

	mu      sync.Mutex // protects workers
	workers map[string]*remoteWorker
}

// Target is whom a Remote asks.
type Target struct {
	// URL is the worker's address, Model the name it serves the model under.
	URL, Model string
	// APIKey is sent as a bearer token when it is not empty.
	APIKey string
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
	return fmt.Sprintf("worker answered with %d %s", e.Code, http.StatusText(e.Code))
}

// Absent tells whether the worker has no such route.
func (e *StatusError) Absent() bool {
	return e.Code == http.StatusNotFound || e.Code == http.StatusMethodNotAllowed || e.Code == http.StatusNotImplemented
}

// NewRemote returns a client with the given bounds.
func NewRemote(opts RemoteOptions) *Remote {
	opts.Timeout = cmp.Or(opts.Timeout, time.Second)
	opts.Parallel = cmp.Or(opts.Parallel, 16)
	opts.MaxTexts = cmp.Or(opts.MaxTexts, 16)
	opts.OpenAfter = cmp.Or(opts.OpenAfter, 5)
	opts.OpenFor = cmp.Or(opts.OpenFor, 10*time.Second)
	opts.MaxAnswer = cmp.Or(opts.MaxAnswer, 32<<20)
	client := opts.Client
	if client == nil {
		client = &http.Client{
			Transport: &http.Transport{
				MaxIdleConnsPerHost: opts.Parallel,
				// Below the five seconds for which the engines' HTTP server keeps an
				// idle connection.
				IdleConnTimeout: 4 * time.Second,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Remote{opts: opts, client: client, workers: make(map[string]*remoteWorker)}
}

// Append adds the prompts of body to dst, as the worker tokenises them. Prompts
// that are token ids already are added without a call; a list of texts costs one
// call each. Of a messages body only the length is learned. On an error dst is as
// before.
//
// Errors: ErrInvalid for a body that is no request of its kind, ErrUnsupported
// for a prompt /tokenize cannot express or that is too much to ask, *StatusError
// when the worker refuses, ErrBusy and ErrBroken without a call when it is not to
// be asked now, the context's error when ctx ends; everything else is a failed
// call or an answer that is none.
func (r *Remote) Append(ctx context.Context, to Target, dst *Prompts, kind Kind, body []byte) error {
	ids, ends := len(dst.IDs), len(dst.Ends)
	if err := r.append(ctx, to, dst, kind, body); err != nil {
		dst.IDs, dst.Ends = dst.IDs[:ids], dst.Ends[:ends]
		return fmt.Errorf("cannot tokenise remotely: %w", err)
	}
	return nil
}

func (r *Remote) append(ctx context.Context, to Target, dst *Prompts, kind Kind, body []byte) error {
	worker := r.worker(to.URL)
	if worker.shut() {
		return ErrBroken // before the body is read, which costs more than all else
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return fmt.Errorf("%w: not a JSON object", ErrInvalid)
	}
	if err := refuseFields(fields); err != nil {
		return err
	}
	var asks []question
	var err error
	switch kind {
	case Chat:
		asks, err = chatQuestion(fields)
	case Completion:
		asks, err = completionQuestions(dst, fields)
	case Messages:
		return r.count(ctx, worker, to, dst, fields)
	default:
		panic("BUG: tokenize: unknown kind of request")
	}
	switch {
	case err != nil:
		return err
	case len(asks) == 0:
		return nil
	case len(asks) > r.opts.MaxTexts:
		return fmt.Errorf("%w: prompt: a list of %d texts, %d are asked for at most", ErrUnsupported, len(asks), r.opts.MaxTexts)
	}
	return worker.do(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
		defer cancel()
		for _, ask := range asks {
			if err := r.call(ctx, to, ask, dst); err != nil {
				return err
			}
		}
		return nil
	})
}

// question is the body of a call of /tokenize.
type question map[string]json.RawMessage

// refuseFields refuses fields with which the engine's prompt is another one
// than /tokenize gives, since it does not know them.
func refuseFields(fields map[string]json.RawMessage) error {
	for _, name := range []string{"truncate_prompt_tokens", "prompt_embeds"} {
		if !isNull(fields[name]) {
			return fmt.Errorf("%w: %s", ErrUnsupported, name)
		}
	}
	var forwarded struct {
		IDs json.RawMessage `json:"prompt_token_ids"`
	}
	if raw := fields["kv_transfer_params"]; !isNull(raw) && json.Unmarshal(raw, &forwarded) == nil && !isNull(forwarded.IDs) {
		return fmt.Errorf("%w: kv_transfer_params.prompt_token_ids", ErrUnsupported)
	}
	return nil
}

// refuseMedia refuses messages with parts that are not text: the worker would
// load a picture once to count it and once more to see it.
func refuseMedia(messages json.RawMessage) error {
	var list []struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(messages, &list) != nil {
		return nil // the worker says what is wrong
	}
	for i := range list {
		var parts []struct {
			Type string `json:"type"`
		}
		if raw := bytes.TrimSpace(list[i].Content); len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &parts) != nil {
			continue
		}
		for j := range parts {
			switch parts[j].Type {
			case "text", "input_text", "output_text", "refusal", "thinking":
			default:
				return fmt.Errorf("%w: messages[%d].content[%d]: a part that is not text", ErrUnsupported, i, j)
			}
		}
	}
	return nil
}

// chatQuestion asks what /tokenize understands of a chat body. Fields that only
// the chat endpoint has, but that reach the template as variables, travel among
// the template's variables.
func chatQuestion(fields map[string]json.RawMessage) ([]question, error) {
	if isNull(fields["messages"]) {
		return nil, fmt.Errorf("%w: messages: missing; send a list of messages", ErrInvalid)
	}
	if err := refuseMedia(fields["messages"]); err != nil {
		return nil, err
	}
	ask := question{}
	for _, name := range []string{
		"messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template",
	} {
		if v, ok := fields[name]; ok {
			ask[name] = v
		}
	}
	kwargs := map[string]json.RawMessage{}
	if v := fields["chat_template_kwargs"]; !isNull(v) {
		if err := json.Unmarshal(v, &kwargs); err != nil {
			return nil, fmt.Errorf("%w: chat_template_kwargs: must be an object", ErrInvalid)
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
	return []question{ask}, nil
}

// completionQuestions asks for each text, and appends prompts that are token ids.
func completionQuestions(dst *Prompts, fields map[string]json.RawMessage) ([]question, error) {
	texts, ids, err := completionPrompts(fields["prompt"])
	if err != nil {
		return nil, err
	}
	for _, p := range ids {
		dst.IDs = append(dst.IDs, p...)
		dst.end()
	}
	asks := make([]question, len(texts))
	for i, text := range texts {
		asks[i] = question{"prompt": text}
		if v, ok := fields["add_special_tokens"]; ok {
			asks[i]["add_special_tokens"] = v
		}
	}
	return asks, nil
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
func (r *Remote) call(ctx context.Context, to Target, ask question, dst *Prompts) error {
	data, err := r.post(ctx, to, "tokenize", ask)
	if err != nil {
		return err
	}
	return appendAnswer(dst, data)
}

// post puts a question to one of the worker's routes and returns the answer.
func (r *Remote) post(ctx context.Context, to Target, path string, ask question) ([]byte, error) {
	endpoint, err := url.JoinPath(to.URL, path)
	if err != nil {
		return nil, errors.New("worker address is no URL")
	}
	ask["model"] = mustMarshal(to.Model)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(mustMarshal(ask)))
	if err != nil {
		return nil, errors.New("worker address is no URL")
	}
	req.Header.Set("Content-Type", "application/json")
	if to.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+to.APIKey)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the worker: %w", err)
	}
	defer resp.Body.Close()

	body := io.LimitReader(resp.Body, r.opts.MaxAnswer+1)
	if resp.StatusCode != http.StatusOK {
		// What is left of a short answer is read so that the connection can be
		// used again.
		_, _ = io.Copy(io.Discard, io.LimitReader(body, 64<<10))
		return nil, &StatusError{Code: resp.StatusCode}
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("cannot read the worker's answer: %w", err)
	}
	if int64(len(data)) > r.opts.MaxAnswer {
		return nil, fmt.Errorf("worker's answer is longer than the %d bytes allowed", r.opts.MaxAnswer)
	}
	return data, nil
}

// count learns the length of a messages body's prompt. A worker without the route
// is not at fault.
func (r *Remote) count(ctx context.Context, worker *remoteWorker, to Target, dst *Prompts, body question) error {
	var absent error
	err := worker.do(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
		defer cancel()
		data, err := r.post(ctx, to, "v1/messages/count_tokens", body)
		if status, ok := errors.AsType[*StatusError](err); ok && status.Absent() {
			absent = err
			return nil
		}
		if err != nil {
			return err
		}
		return takeCount(dst, data)
	})
	if err != nil {
		return err
	}
	return absent
}

// takeCount notes the length of the prompt that an answer of count_tokens tells.
func takeCount(dst *Prompts, data []byte) error {
	var answer struct {
		Input int `json:"input_tokens"`
	}
	if err := json.Unmarshal(data, &answer); err != nil || answer.Input < 1 {
		return errors.New("worker's answer has no count of tokens")
	}
	dst.Length = answer.Input
	return nil
}

// appendAnswer adds the token ids of an answer of /tokenize to dst as one prompt,
// or nothing.
func appendAnswer(dst *Prompts, data []byte) error {
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
