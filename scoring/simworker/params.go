package simworker

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// maxSaltLen is the most characters that the engine takes for a cache_salt.
const maxSaltLen = 128

// params is what a generating request asks for.
type params struct {
	chat   bool
	model  string
	lora   string
	stream bool
	// usage and continuous are stream_options; the second counts only with the
	// first.
	usage, continuous bool

	n           int
	maxTokens   int // 0 if not given
	minTokens   int
	stops       []string
	includeStop bool
	ignoreEOS   bool
	salt        string
	seed        uint64
	report      bool // kv_cache_report_mode "full"
	priority    int64

	logprobs    bool
	topLogprobs int

	tools  []tool
	choice toolChoice
	// answered is true when the conversation ends with what a tool returned.
	answered bool
	called   *calledTool // nil for an answer in text
}

// fields gives typed access to a JSON object's members and collects what is
// wrong with them. Names are case-sensitive, and the last of two members with
// one name counts, as in Python.
type fields struct {
	raw   map[string]json.RawMessage
	loc   string
	found []validationError
}

// parseObject returns the members of body.
func parseObject(body []byte) (*fields, *apiError) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, errValidation(validationError{kind: "missing", loc: "body", msg: "Field required", input: "None"})
	}
	if !json.Valid(body) {
		pos, msg, ok := jsonFault(body)
		if !ok {
			pos, msg = 0, "Expecting value"
		}
		return nil, errValidation(validationError{
			kind: "json_invalid", loc: "body." + strconv.Itoa(pos), msg: "JSON decode error",
			input: "'<dict of 0 items>'", ctx: "{'error': " + pyString(msg) + "}",
		})
	}
	f := &fields{loc: "body"}
	if json.Unmarshal(body, &f.raw) != nil || f.raw == nil {
		return nil, errValidation(validationError{
			kind: "model_attributes_type", loc: "body",
			msg: "Input should be a valid dictionary or object to extract fields from", input: pyInput(body),
		})
	}
	return f, nil
}

// err returns what was found, or nil.
func (f *fields) err() *apiError {
	if len(f.found) == 0 {
		return nil
	}
	return errValidation(f.found...)
}

func (f *fields) wrong(name, kind, msg string, raw json.RawMessage) {
	f.found = append(f.found, validationError{kind: kind, loc: f.loc + "." + name, msg: msg, input: pyInput(raw)})
}

// get returns the member, or nil if it is absent or null.
func (f *fields) get(name string) json.RawMessage {
	raw := bytes.TrimSpace(f.raw[name])
	if string(raw) == "null" {
		return nil
	}
	return raw
}

func (f *fields) missing(name string) {
	f.found = append(f.found, validationError{
		kind: "missing", loc: f.loc + "." + name, msg: "Field required",
		input: "'<dict of " + strconv.Itoa(len(f.raw)) + " items>'",
	})
}

func (f *fields) str(name string) string {
	raw := f.get(name)
	if raw == nil {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		f.wrong(name, "string_type", "Input should be a valid string", raw)
	}
	return s
}

func (f *fields) boolean(name string) bool {
	raw := f.get(name)
	switch strings.ToLower(strings.Trim(string(raw), `"`)) {
	case "", "false", "0", "no", "off", "f", "n":
		return false
	case "true", "1", "yes", "on", "t", "y":
		return true
	}
	if raw[0] == '{' || raw[0] == '[' {
		f.wrong(name, "bool_type", "Input should be a valid boolean", raw)
	} else {
		f.wrong(name, "bool_parsing", "Input should be a valid boolean, unable to interpret input", raw)
	}
	return false
}

// number returns the member as a number; numbers written as strings count.
func (f *fields) number(name, noun string) (v float64, ok bool) {
	raw := f.get(name)
	if raw == nil {
		return 0, false
	}
	kind := "float"
	if noun == "integer" {
		kind = "int"
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			f.wrong(name, kind+"_parsing", "Input should be a valid "+noun+", unable to parse string as "+article(noun)+" "+noun, raw)
		}
		return v, err == nil
	}
	if json.Unmarshal(raw, &v) != nil {
		f.wrong(name, kind+"_type", "Input should be a valid "+noun, raw)
		return 0, false
	}
	return v, true
}

func article(noun string) string {
	if noun[0] == 'i' {
		return "an"
	}
	return "a"
}

func (f *fields) float(name string) { f.number(name, "number") }

// seed returns a member of 64 bits.
func (f *fields) seed(name string) uint64 {
	var n int64
	if raw := f.get(name); raw != nil && json.Unmarshal(raw, &n) == nil {
		return uint64(n)
	}
	return uint64(f.integer(name, 0)) // which says what is wrong with it
}

func (f *fields) integer(name string, absent int) int {
	v, ok := f.number(name, "integer")
	if !ok {
		return absent
	}
	if v != math.Trunc(v) || math.Abs(v) > math.MaxInt32 {
		f.wrong(name, "int_from_float", "Input should be a valid integer, got a number with a fractional part", f.get(name))
		return absent
	}
	return int(v)
}

// object returns the member's own members.
func (f *fields) object(name string) *fields {
	sub := &fields{loc: f.loc + "." + name}
	raw := f.get(name)
	if raw == nil {
		return sub
	}
	if json.Unmarshal(raw, &sub.raw) != nil {
		f.wrong(name, "dict_type", "Input should be a valid dictionary", raw)
	}
	return sub
}

// stops returns the member "stop": a string or a list of them.
func (f *fields) stops() []string {
	raw := f.get("stop")
	if raw == nil {
		return nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) != nil {
		f.wrong("stop", "string_type", "Input should be a valid string", raw)
	}
	return many
}

// parseParams reads a generating request and checks everything that needs
// neither model nor tokens.
func parseParams(body []byte, chat bool) (*params, *apiError) {
	f, err := parseObject(body)
	if err != nil {
		return nil, err
	}
	p := &params{chat: chat, model: f.str("model")}
	if chat {
		p.readChat(f)
	} else if f.get("prompt") == nil {
		f.missing("prompt")
	}
	p.readSampling(f)
	if err := f.err(); err != nil {
		return nil, err
	}
	return p, p.check(f)
}

func (p *params) readChat(f *fields) {
	switch raw := f.get("messages"); {
	case raw == nil:
		f.missing("messages")
	case raw[0] != '[':
		f.wrong("messages", "list_type", "Input should be a valid list", raw)
	}
	p.logprobs = f.boolean("logprobs")
	p.topLogprobs = f.integer("top_logprobs", 0)
	p.readTools(f)
}

func (p *params) readSampling(f *fields) {
	for _, name := range []string{"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"} {
		f.float(name)
	}
	p.stream = f.boolean("stream")
	opts := f.object("stream_options")
	p.usage = opts.boolean("include_usage")
	p.continuous = opts.boolean("continuous_usage_stats") && p.usage
	f.found = append(f.found, opts.found...)
	p.n = f.integer("n", 1)
	p.maxTokens = f.integer("max_tokens", 0)
	if p.chat {
		p.maxTokens = f.integer("max_completion_tokens", p.maxTokens)
	} else {
		if f.get("max_tokens") == nil {
			p.maxTokens = 16 // the completions default
		}
		if f.get("logprobs") != nil {
			p.logprobs, p.topLogprobs = true, f.integer("logprobs", 0)
		}
	}
	p.minTokens = f.integer("min_tokens", 0)
	p.stops = f.stops()
	p.includeStop = f.boolean("include_stop_str_in_output")
	p.ignoreEOS = f.boolean("ignore_eos")
	p.salt = f.str("cache_salt")
	p.seed = f.seed("seed")
	p.priority = int64(f.integer("priority", 0))
	if xargs := f.object("vllm_xargs"); xargs.get("kv_cache_report_mode") != nil {
		p.report = xargs.str("kv_cache_report_mode") == "full"
		f.found = append(f.found, xargs.found...)
	}
}

// check applies the engine's rules between fields.
func (p *params) check(f *fields) *apiError {
	value := func(param, msg string) *apiError {
		return errValidation(validationError{
			kind: "value_error", loc: "body." + param, msg: "Value error, " + msg,
			input: "'<dict of " + strconv.Itoa(len(f.raw)) + " items>'",
			ctx:   "{'error': " + pyString(msg) + "}",
		})
	}
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		if f.get(name) != nil && f.integer(name, 0) < 1 {
			return badRequest(name, "%s must be at least 1, got %d.", name, f.integer(name, 0))
		}
	}
	switch {
	case f.get("stream_options") != nil && !p.stream:
		return value("stream_options", "Stream options can only be defined when `stream=True`.")
	case f.get("cache_salt") != nil && p.salt == "":
		return value("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	case utf8.RuneCountInString(p.salt) > maxSaltLen || strings.ContainsAny(p.salt, "@/\\\x00"):
		return value("cache_salt", `Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\', or NUL.`)
	case slices.Contains(p.stops, ""):
		return badRequest("stop", "stop cannot contain an empty string.")
	case p.n < 1:
		return badRequest("n", "n must be at least 1, got %d.", p.n)
	case p.topLogprobs < 0 || p.topLogprobs > maxTopLogprobs:
		return badRequest("top_logprobs", "top_logprobs must be between 0 and %d, got %d.", maxTopLogprobs, p.topLogprobs)
	case !p.chat && f.boolean("echo"):
		return badRequest("echo", "echo is not supported by this worker.")
	case !p.chat && f.str("suffix") != "":
		return badRequest("suffix", "suffix is not currently supported")
	}
	return nil
}

// maxTopLogprobs is the engine's default --max-logprobs.
const maxTopLogprobs = 20

// request returns the engine's form of choice k of prompt.
func (p *params) request(prompt []uint32, k, maxTokens int) engine.Request {
	return engine.Request{
		Prompt: prompt, MaxTokens: maxTokens, MinTokens: p.minTokens, IgnoreEOS: p.ignoreEOS,
		Choice: k, Seed: p.seed, Salt: p.salt, LoRA: p.lora, ReportCached: p.report,
		Priority: p.priority,
	}
}

// limit returns how many tokens may be generated after a prompt of n tokens,
// or why there is no room.
func (p *params) limit(n, maxLen int) (int, *apiError) {
	switch {
	case n >= maxLen:
		return 0, errTooLong(maxLen, 0)
	case p.maxTokens == 0:
		return maxLen - n, nil
	case n+p.maxTokens > maxLen:
		return 0, errTooLong(maxLen, p.maxTokens)
	}
	return p.maxTokens, nil
}
