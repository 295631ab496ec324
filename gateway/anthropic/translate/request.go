package translate

import (
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// Purpose is what a chat body is made for.
type Purpose uint8

const (
	// ForWorker makes the body that a worker gets on its chat route.
	ForWorker Purpose = iota
	// ForCount makes the body of a question to a worker's /tokenize about what
	// ForWorker would send.
	ForCount
	// ForTokens makes what the engine itself makes of a body on its own messages
	// route, as far as that becomes part of the prompt: for those who find the
	// prompt's tokens. It passes over what plays no part in the prompt.
	ForTokens
)

// The top-level keys of a messages body that a translation knows.
const (
	topModel = iota
	topMessages
	topSystem
	topTools
	topToolChoice
	topMaxTokens
	topStream
	topTemperature
	topTopP
	topTopK
	topStop
	topMetadata
	topThinking
	topOutput
	topCacheControl
	topServiceTier
	topSpeed
	topCacheSalt
	topPriority
	topTemplateKwargs
	topXArgs
	topWatermarking
	topCount
)

// topNames are their names, in their order.
var topNames = []string{
	"model", "messages", "system", "tools", "tool_choice", "max_tokens", "stream",
	"temperature", "top_p", "top_k", "stop_sequences", "metadata", "thinking",
	"output_config", "cache_control", "service_tier", "speed",
	"cache_salt", "priority", "chat_template_kwargs", "vllm_xargs", "watermarking",
}

// copied are the top-level keys that chat completions have too, with their names
// there. The last ones are the engine's own, and the same on both of its routes.
var copied = []struct {
	field int
	key   string
}{
	{topMaxTokens, `,"max_tokens":`},
	{topTemperature, `,"temperature":`},
	{topTopP, `,"top_p":`},
	{topTopK, `,"top_k":`},
	{topStop, `,"stop":`},
	{topCacheSalt, `,"cache_salt":`},
	{topPriority, `,"priority":`},
	{topTemplateKwargs, `,"chat_template_kwargs":`},
	{topXArgs, `,"vllm_xargs":`},
	{topWatermarking, `,"watermarking":`},
}

// AppendChat appends the body of a chat completion that asks for what the
// messages body asks for, and returns it. names, which may be nil, learns what is
// needed to speak of the result in the client's terms.
//
// The error is a *wire.Error with the client's name of the field at fault. It says
// that the body is not valid, or that it asks for something that chat completions
// can't do: see the package's rule. What it appends is valid JSON whatever the
// body is, and at most a small multiple of its size.
func AppendChat(dst, body []byte, p Purpose, names *Names) ([]byte, error) {
	t := translation{dst: dst, purpose: p, names: names}
	if names != nil {
		names.reset()
	}
	if err := t.body(body); err != nil {
		return dst, err
	}
	return t.dst, nil
}

// translation is one call of AppendChat.
type translation struct {
	dst     []byte
	purpose Purpose
	names   *Names
	top     [topCount]value
	// The rest is scratch memory for one message.
	parts, calls, reasoning, images []byte
	partCount, imageCount           int
	onePart                         value // the text, while there is one part and it is text
	block, item                     [blockKeys]value
}

// lenient reports whether things that have no equivalent are passed over.
func (t *translation) lenient() bool { return t.purpose == ForTokens }

func (t *translation) add(s string) { t.dst = append(t.dst, s...) }

func (t *translation) addValue(key string, v value) {
	t.dst = append(append(t.dst, key...), v...)
}

func (t *translation) body(body []byte) *wire.Error {
	c := jsonscan.Cursor{B: body, MaxDepth: jsonscan.RequestDepth}
	c.Document()
	start := c.I
	c.Skip()
	end := c.I
	c.Finish()
	if c.Bad != jsonscan.FaultNone {
		return notJSON(&c)
	}
	v := value(body[start:end])
	if !v.isObject() {
		return refuse("invalid_json", "", "The request body must be a JSON object, not %s.", v.kind())
	}
	if err := fields(t.top[:]).read(v, at{}, topNames, t.lenient()); err != nil {
		return err
	}
	return t.object()
}

// object writes the chat body of t.top.
func (t *translation) object() *wire.Error {
	if !t.top[topModel].isString() {
		return wrongType("model", "a string", t.top[topModel])
	}
	t.addValue(`{"model":`, t.top[topModel])
	t.add(`,"messages":[`)
	if err := t.conversation(); err != nil {
		return err
	}
	t.add(`]`)
	if err := t.tools(); err != nil {
		return err
	}
	if t.purpose != ForTokens {
		if err := t.toolChoice(); err != nil {
			return err
		}
		if err := t.noEffect(); err != nil {
			return err
		}
	}
	if err := t.settings(); err != nil {
		return err
	}
	t.add(`}`)
	return nil
}

// settings writes what remains of the top level.
func (t *translation) settings() *wire.Error {
	thinking, err := t.thinking()
	if err != nil {
		return err
	}
	effort, err := t.outputConfig()
	if err != nil {
		return err
	}
	if thinking != "" { // To the engine it counts for more than the effort.
		effort = value(thinking)
	}
	if t.purpose != ForWorker {
		t.templateVariables(effort)
		return nil
	}
	if effort != nil {
		t.addValue(`,"reasoning_effort":`, effort)
	}
	if n := t.top[topMaxTokens]; !n.isNumber() {
		return wrongType("max_tokens", "a number of tokens", n)
	} else if v, ok := jsonscan.Integer(n, 1<<31-1); !ok || v == 0 {
		return invalid("max_tokens", "`max_tokens` must be an integer from 1 to 2147483647. Ask for at least one token.")
	}
	for _, c := range copied {
		if v := t.top[c.field]; v != nil {
			t.addValue(c.key, v)
		}
	}
	if err := t.metadata(); err != nil {
		return err
	}
	return t.stream()
}

// stream asks for the counts of tokens with every chunk: the first event of a
// message tells how long the prompt is.
func (t *translation) stream() *wire.Error {
	switch v := t.top[topStream]; {
	case v == nil:
	case !v.isBool():
		return wrongType("stream", "true or false", v)
	case v.isTrue():
		t.add(`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`)
	}
	return nil
}

// templateVariables writes what reaches the chat template as variables. Asked for
// tokens alone, the engine knows no reasoning_effort: what it sets for the template
// on the chat route is spelt out for ForCount, unless the client has set it.
func (t *translation) templateVariables(effort value) {
	kwargs := t.top[topTemplateKwargs]
	if t.purpose == ForTokens || effort == nil || kwargs != nil && !kwargs.isObject() {
		if kwargs != nil {
			t.addValue(`,"chat_template_kwargs":`, kwargs)
		}
		if effort != nil && t.purpose == ForTokens {
			t.addValue(`,"reasoning_effort":`, effort)
		}
		return
	}
	var given [2]value
	if kwargs == nil {
		kwargs = value("{}")
	}
	// The names are looked for only: what else is there is the template's matter.
	hasEffort, hasThinking := false, false
	w := enter(kwargs, jsonscan.RequestDepth)
	members := 0
	for name, _, ok := w.member(); ok; name, _, ok = w.member() {
		members++
		hasEffort = hasEffort || string(name) == "reasoning_effort"
		hasThinking = hasThinking || string(name) == "enable_thinking"
	}
	if !hasEffort {
		given[0] = effort
	}
	if !hasThinking {
		given[1] = value("true")
		if effort.is("none") {
			given[1] = value("false")
		}
	}
	t.addValue(`,"chat_template_kwargs":`, kwargs[:len(kwargs)-1])
	for i, key := range [...]string{`"reasoning_effort":`, `"enable_thinking":`} {
		if given[i] == nil {
			continue
		}
		if members > 0 {
			t.add(`,`)
		}
		members++
		t.addValue(key, given[i])
	}
	t.add(`}`)
}
