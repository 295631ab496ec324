package simworker

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// answer is what these tests read of an answer.
type answer struct {
	ID      string
	Model   string
	Choices []struct {
		Index   int
		Text    string
		Message struct{ Content string }
		Delta   struct {
			Role    string
			Content *string
		}
		FinishReason *string `json:"finish_reason"`
		StopReason   *string `json:"stop_reason"`
		Logprobs     *struct {
			Tokens     []string
			TextOffset []int            `json:"text_offset"`
			Top        []map[string]any `json:"top_logprobs"`
			Logprobs   []float64        `json:"token_logprobs"`
		}
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Total      int `json:"total_tokens"`
		Completion int `json:"completion_tokens"`
		Details    *struct {
			Cached  int `json:"cached_tokens"`
			Created int `json:"created_cache_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct {
		Message string
		Type    string
		Param   *string
		Code    int
	}
}

func parse(t *testing.T, body string) *answer {
	t.Helper()
	a := new(answer)
	if err := json.Unmarshal([]byte(body), a); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return a
}

// streamed joins a stream's texts by choice and returns its last usage.
func streamed(t *testing.T, body string) (texts map[int]string, last *answer) {
	t.Helper()
	texts = map[int]string{}
	for _, e := range events(body) {
		if e == "[DONE]" {
			return texts, last
		}
		a := parse(t, e)
		for _, c := range a.Choices {
			texts[c.Index] += c.Text
			if c.Delta.Content != nil {
				texts[c.Index] += *c.Delta.Content
			}
		}
		last = a
	}
	t.Fatal("no [DONE]")
	return nil, nil
}

func TestStreamAndWholeAnswerSayTheSame(t *testing.T) {
	w := startWorker(t, nil)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		body := func(extra string) string {
			if path == "/v1/completions" {
				return `{"model":"tiny","prompt":["one","two"],"max_tokens":12,"n":3` + extra + `}`
			}
			return chatBody("hello", `,"max_tokens":12,"n":3`+extra)
		}
		_, whole := post(t, w, path, body(""))
		_, stream := post(t, w, path, body(`,"stream":true,"stream_options":{"include_usage":true}`))
		a := parse(t, whole)
		texts, last := streamed(t, stream)
		if want := len(a.Choices); len(texts) != want || want != 3*strings.Count(path, "chat")+6*(1-strings.Count(path, "chat")) {
			t.Fatalf("%s: %d choices whole, %d streamed", path, want, len(texts))
		}
		for i, c := range a.Choices {
			if c.Index != i || texts[i] != c.Text+c.Message.Content || len(texts[i]) != 12 {
				t.Errorf("%s choice %d: %q streamed, %q whole", path, i, texts[i], c.Text+c.Message.Content)
			}
		}
		if *last.Usage != *a.Usage || a.Usage.Completion != 12*len(a.Choices) || a.Usage.Total != a.Usage.Prompt+a.Usage.Completion {
			t.Errorf("%s: usage %+v streamed, %+v whole", path, last.Usage, a.Usage)
		}
	}
}

func TestPromptForms(t *testing.T) {
	w := startWorker(t, nil)
	f := func(prompt string, choices, tokens int) {
		t.Helper()
		_, body := post(t, w, "/v1/completions", `{"model":"tiny","max_tokens":1,"prompt":`+prompt+`}`)
		a := parse(t, body)
		if a.Error != nil || len(a.Choices) != choices || a.Usage.Prompt != tokens {
			t.Errorf("prompt %s: %s; want %d choices and %d tokens", prompt, body, choices, tokens)
		}
	}
	f(`"abc"`, 1, 3)
	f(`["abc","de"]`, 2, 5)
	f(`[1,2,3,4]`, 1, 4)
	f(`[[1,2],[3]]`, 2, 3)
	f(`"a<|im_end|>b"`, 1, 3)
}

// templateTokens is what ByteTokenizer's template adds to one user's message.
const templateTokens = 19

func TestTokenLimits(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.MaxModelLen = 200; c.OutputTokens = 0 })
	f := func(extra string, tokens int) {
		t.Helper()
		_, body := post(t, w, "/v1/chat/completions", chatBody("hello", extra))
		if a := parse(t, body); a.Error != nil || a.Usage.Completion != tokens {
			t.Errorf("%s: %s; want %d tokens", extra, body, tokens)
		}
	}
	f(`,"max_tokens":7`, 7)
	f(`,"max_completion_tokens":8`, 8)
	f(`,"max_tokens":7,"max_completion_tokens":8`, 8)
	f("", 200-templateTokens-len("hello"))
	_, body := post(t, w, "/v1/completions", `{"model":"tiny","prompt":"a"}`)
	if a := parse(t, body); a.Usage.Completion != 16 {
		t.Errorf("a completion without max_tokens has %d tokens, want 16", a.Usage.Completion)
	}
}

func TestTextsEndByThemselvesWithoutALimit(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.OutputTokens = 10 })
	_, body := post(t, w, "/v1/chat/completions", chatBody("hello", ""))
	a := parse(t, body)
	if c := a.Choices[0]; *c.FinishReason != "stop" || c.StopReason != nil || len(c.Message.Content) != a.Usage.Completion-1 {
		t.Errorf("%s: want stop, and no text for the end of the text", body)
	}
	_, body = post(t, w, "/v1/chat/completions", chatBody("hello", `,"ignore_eos":true,"max_tokens":50`))
	if a := parse(t, body); *a.Choices[0].FinishReason != "length" || a.Usage.Completion != 50 {
		t.Errorf("ignore_eos: %s", body)
	}
}

func TestStopStrings(t *testing.T) {
	w := startWorker(t, slowly(time.Millisecond))
	_, body := post(t, w, "/v1/chat/completions", chatBody("hello", `,"max_tokens":40`))
	text := parse(t, body).Choices[0].Message.Content
	stop := text[20:23]
	cut := strings.Index(text, stop)
	quoted, _ := json.Marshal([]string{"never there", stop})
	for _, include := range []bool{false, true} {
		want := text[:cut]
		if include {
			want += stop
		}
		extra := fmt.Sprintf(`,"max_tokens":5000,"ignore_eos":true,"stop":%s,"include_stop_str_in_output":%t`, quoted, include)
		_, body := post(t, w, "/v1/chat/completions", chatBody("hello", extra))
		a := parse(t, body)
		c := a.Choices[0]
		if c.Message.Content != want || *c.FinishReason != "stop" || c.StopReason == nil || *c.StopReason != stop || a.Usage.Completion != cut+3 {
			t.Errorf("%s\nwant %q, stopped by %q after %d tokens", body, want, stop, cut+3)
		}
		_, stream := post(t, w, "/v1/chat/completions", chatBody("hello", extra+`,"stream":true`))
		if texts, _ := streamed(t, stream); texts[0] != want {
			t.Errorf("streamed %q, want %q", texts[0], want)
		}
	}
	s := w.Stats()
	if s.Finished["stop"] != 4 || s.Aborted != 0 || s.Running != 0 {
		t.Errorf("%+v: want four stops and no abort", s)
	}
}

func TestCachedTokensAreShownOnRequest(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.EnablePromptTokensDetails = true })
	text := longText("", 101) // 120 tokens: three blocks and some
	for i, want := range [][2]int{{0, 96}, {96, 0}} {
		_, body := post(t, w, "/v1/chat/completions", chatBody(text, `,"max_tokens":2`))
		d := parse(t, body).Usage.Details
		if d == nil || d.Cached != want[0] || d.Created != want[1] {
			t.Errorf("request %d: details %+v, want %v", i, d, want)
		}
		_, stream := post(t, w, "/v1/chat/completions", chatBody(text+"b", `,"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}`))
		if _, last := streamed(t, stream); last.Usage.Details == nil {
			t.Error("no details in a stream's usage")
		}
	}
	if s := w.Stats(); s.PromptCached == 0 || s.PromptCached+s.PromptComputed != 2*(120+121) {
		t.Errorf("%d cached, %d computed; want them to add up to %d", s.PromptCached, s.PromptComputed, 2*(120+121))
	}
}

func TestCompletionLogprobs(t *testing.T) {
	w := startWorker(t, nil)
	_, body := post(t, w, "/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":3,"logprobs":2}`)
	c := parse(t, body).Choices[0]
	lp := c.Logprobs
	if lp == nil || strings.Join(lp.Tokens, "") != c.Text || len(lp.Top) != 3 || len(lp.Top[0]) != 2 || lp.TextOffset[2] != 2 || lp.Logprobs[0] >= 0 {
		t.Errorf("logprobs in %s", body)
	}
}

func TestRequestIDs(t *testing.T) {
	w := startWorker(t, nil)
	r := newRequest(t, http.MethodPost, w.URL()+"/v1/chat/completions", chatBody("hello", `,"max_tokens":1`))
	r.Header.Set("X-Request-Id", "abc-1")
	if _, body := send(t, r); parse(t, body).ID != "chatcmpl-abc-1" {
		t.Errorf("%s: want the id chatcmpl-abc-1", body)
	}
	_, one := post(t, w, "/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":1}`)
	_, two := post(t, w, "/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":1}`)
	a, b := parse(t, one).ID, parse(t, two).ID
	if a == b || len(a) != len("cmpl-")+16 || !strings.HasPrefix(a, "cmpl-") {
		t.Errorf("ids %q and %q", a, b)
	}
}

func TestAPIKeyGuardsV1(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.APIKey = "secret" })
	f := func(path, key string, status int) {
		t.Helper()
		r := newRequest(t, http.MethodGet, w.URL()+path, "")
		if key != "" {
			r.Header.Set("Authorization", key)
		}
		resp, body := send(t, r)
		if resp.StatusCode != status || status == http.StatusUnauthorized && body != `{"error":"Unauthorized"}` {
			t.Errorf("%s with %q: %d %s, want %d", path, key, resp.StatusCode, body, status)
		}
	}
	f("/v1/models", "", 401)
	f("/v1/models", "Bearer wrong", 401)
	f("/v1/models", "secret", 401)
	f("/v1/models", "Bearer secret", 200)
	f("/health", "", 200)
	f("/metrics", "", 200)
}

func TestLoRAsAreModels(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.LoRAs = []string{"law"} })
	_, body := post(t, w, "/v1/completions", `{"model":"law","prompt":"a","max_tokens":1}`)
	if a := parse(t, body); a.Model != "law" {
		t.Errorf("%s: want the model law", body)
	}
	_, body = get(t, w, "/v1/models")
	if !strings.Contains(body, `"id":"law","object":"model"`) || !strings.Contains(body, `"parent":"tiny"`) {
		t.Errorf("models %s: want law under tiny", body)
	}
	_, body = post(t, w, "/v1/completions", `{"model":"x","prompt":"a"}`)
	if !strings.Contains(body, "Valid aliases: tiny, law.") {
		t.Errorf("%s: want both names", body)
	}
}

func TestRefusals(t *testing.T) {
	w := startWorker(t, nil)
	chat, comp := "/v1/chat/completions", "/v1/completions"
	f := func(path, body string, status int, param, part string) {
		t.Helper()
		resp, got := post(t, w, path, body)
		e := parse(t, got).Error
		if e == nil {
			t.Errorf("%s: accepted: %s", body, got)
			return
		}
		gotParam := ""
		if e.Param != nil {
			gotParam = *e.Param
		}
		if resp.StatusCode != status || e.Code != status || gotParam != param || !strings.Contains(e.Message, part) {
			t.Errorf("%s: %d %s; want %d, param %q and %q", body, resp.StatusCode, got, status, param, part)
		}
	}
	f(chat, ``, 400, "body", "Field required")
	f(chat, `[]`, 400, "body", "valid dictionary")
	f(chat, `{"messages":3,"model":"tiny"}`, 400, "body.messages", "'input': 3")
	f(chat, chatBody("x", `,"max_tokens":"many"`), 400, "body.max_tokens", "int_parsing")
	f(chat, chatBody("x", `,"max_tokens":1.5`), 400, "body.max_tokens", "int_from_float")
	f(chat, chatBody("x", `,"stream":"maybe"`), 400, "body.stream", "bool_parsing")
	f(chat, chatBody("x", `,"stream":{}`), 400, "body.stream", "bool_type")
	f(chat, chatBody("x", `,"stream":1,"stream_options":[]`), 400, "body.stream_options", "dict_type")
	f(chat, chatBody("x", `,"stop":7`), 400, "body.stop", "string_type")
	f(chat, chatBody("x", `,"stop":""`), 400, "stop", "empty string")
	f(chat, chatBody("x", `,"temperature":[],"n":"z"`), 400, "body.temperature", "2 validation errors:")
	f(chat, `{"model":5,"messages":[]}`, 400, "body.model", "string_type")
	f(chat, chatBody("x", `,"max_tokens":0`), 400, "max_tokens", "at least 1, got 0")
	f(chat, chatBody("x", `,"n":0`), 400, "n", "at least 1")
	f(chat, chatBody("x", `,"top_logprobs":21,"logprobs":true`), 400, "top_logprobs", "between 0 and 20")
	f(chat, chatBody("x", `,"cache_salt":""`), 400, "body.cache_salt", "non-empty string")
	for _, salt := range []string{"a@b", "a/b", `a\\b`, `a\u0000b`, strings.Repeat("é", 129)} {
		f(chat, chatBody("x", `,"cache_salt":"`+salt+`"`), 400, "body.cache_salt", "at most 128 characters")
	}
	f(chat, chatBody("x", `,"stream_options":{}`), 400, "body.stream_options", "`stream=True`")
	f(chat, `{"model":"tiny","messages":[]}`, 400, "", "empty list")
	f(chat, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "", "image_url")
	f(chat, chatBody("x", `,"max_tokens":8192`), 400, "input_tokens", "you requested 8192 output tokens and your prompt contains at least 1 input tokens")
	f(comp, `{"model":"tiny"}`, 400, "body.prompt", "Field required")
	f(comp, `{"model":"tiny","prompt":""}`, 400, "prompt", "cannot be empty")
	f(comp, `{"model":"tiny","prompt":[]}`, 400, "prompt", "at least one prompt")
	f(comp, `{"model":"tiny","prompt":"a","echo":true}`, 400, "echo", "echo")
	f(comp, `{"model":"tiny","prompt":"a","suffix":"b"}`, 400, "suffix", "suffix")
	f(comp, `{"model":"tiny","prompt":{"a":1}}`, 400, "", "prompt must be")
	f("/tokenize", `{"model":"tiny"}`, 400, "body.prompt", "Field required")
	f("/tokenize", `{"model":"tiny","prompt":[1,2]}`, 400, "body.prompt", "string_type")
	f("/tokenize", `{"model":"no","prompt":"a"}`, 404, "model", "does not exist")
	f("/detokenize", `{"model":"tiny","tokens":"a"}`, 400, "body.tokens", "list_type")
	f("/detokenize", `{"model":"tiny"}`, 400, "body.tokens", "Field required")

	r := newRequest(t, http.MethodPost, w.URL()+chat, chatBody("x", ""))
	r.Header.Set("X-Data-Parallel-Rank", "3")
	if resp, body := send(t, r); resp.StatusCode != 400 {
		t.Errorf("unknown rank: %d %s", resp.StatusCode, body)
	}
	if s := w.Stats(); s.Finished["length"]+s.Finished["stop"]+s.Finished["error"] != 0 || s.Open != 0 {
		t.Errorf("%+v: a refused request reached the engine", s)
	}
}

func TestTokenizeAndBack(t *testing.T) {
	w := startWorker(t, nil)
	_, body := post(t, w, "/tokenize", `{"model":"tiny","prompt":"héllo","return_token_strs":true}`)
	var tok struct {
		Count  int
		Tokens []uint32
		Strs   []string `json:"token_strs"`
	}
	if err := json.Unmarshal([]byte(body), &tok); err != nil || tok.Count != 6 || len(tok.Tokens) != 6 || len(tok.Strs) != 6 {
		t.Fatalf("tokenize: %s, %v", body, err)
	}
	ids, _ := json.Marshal(tok.Tokens)
	if _, body := post(t, w, "/detokenize", `{"model":"tiny","tokens":`+string(ids)+`}`); body != `{"prompt":"héllo"}` {
		t.Errorf("detokenize: %s", body)
	}
}

func TestRoutesThatAreNotThere(t *testing.T) {
	w := startWorker(t, nil)
	resp, body := get(t, w, "/v1/chat/completions")
	if resp.StatusCode != 405 || resp.Header.Get("Allow") != "POST" || body != `{"detail":"Method Not Allowed"}` {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, _ := post(t, w, "/sim/fault", `{}`); resp.StatusCode != 404 {
		t.Errorf("/sim/fault answers %d without FaultAPI", resp.StatusCode)
	}
}

func TestLoadHeaders(t *testing.T) {
	w := startWorker(t, nil)
	for format, want := range map[string]string{
		"JSON": `JSON {"named_metrics": {"kv_cache_usage_perc": 0.0, "num_requests_waiting": 0}}`,
		"TEXT": `TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0`,
		"":     "",
	} {
		r := newRequest(t, http.MethodPost, w.URL()+"/v1/chat/completions", chatBody("x", `,"max_tokens":1`))
		r.Header.Set("endpoint-load-metrics-format", format)
		if resp, _ := send(t, r); resp.Header.Get("endpoint-load-metrics") != want {
			t.Errorf("format %q: %q, want %q", format, resp.Header.Get("endpoint-load-metrics"), want)
		}
	}
}

func TestRequestsAreRemembered(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.KeepRequests = 2 })
	for i := range 3 {
		r := newRequest(t, http.MethodPost, w.URL()+"/v1/chat/completions", chatBody(fmt.Sprint(i), `,"max_tokens":1`))
		r.Header.Set("X-Test", fmt.Sprint(i))
		send(t, r)
	}
	get(t, w, "/health")
	get(t, w, "/metrics")
	got := w.Requests()
	if len(got) != 2 {
		t.Fatalf("%d requests remembered, want 2", len(got))
	}
	for i, r := range got {
		want := fmt.Sprint(i + 1)
		if r.Header.Get("X-Test") != want || string(r.Body) != chatBody(want, `,"max_tokens":1`) || r.Path != "/v1/chat/completions" || r.Method != "POST" {
			t.Errorf("request %d: %+v", i, r)
		}
	}
}

func TestMetricsCount(t *testing.T) {
	w := startWorker(t, nil)
	for range 2 {
		post(t, w, "/v1/completions", `{"model":"tiny","prompt":"`+longText("", 100)+`","max_tokens":3,"n":2}`)
	}
	_, body := get(t, w, "/metrics")
	for _, want := range []string{
		`vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 400.0`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 288.0`,
		`vllm:prompt_tokens_total{engine="0",model_name="tiny"} 400.0`,
		`vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 112.0`,
		`vllm:generation_tokens_total{engine="0",model_name="tiny"} 12.0`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 4.0`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 4.0`,
		`vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 8.0`,
		`vllm:request_params_n_bucket{engine="0",le="1.0",model_name="tiny"} 0.0`,
		`vllm:request_params_n_bucket{engine="0",le="2.0",model_name="tiny"} 4.0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0`,
		`block_size="32"`, `num_gpu_blocks="512"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestRunningAndWaitingAreShown(t *testing.T) {
	w := startWorker(t, func(c *Config) { slowly(5 * time.Millisecond)(c); c.MaxSeqs = 1 })
	for range 3 {
		openStream(t, w, "/v1/chat/completions", chatBody("hello", `,"stream":true,"max_tokens":8000,"ignore_eos":true`))
	}
	waitUntil(t, w, "one running, two waiting", func(s Stats) bool { return s.Running == 1 && s.Waiting == 2 })
	_, body := get(t, w, "/metrics")
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="tiny"} 1.0`,
		`vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(body, `vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0`+"\n") {
		t.Error("cache usage is 0 while a request runs")
	}
	if _, body := post(t, w, "/reset_prefix_cache", ""); body != `{"success":false}` {
		t.Errorf("reset while a request runs: %s", body)
	}
}

func TestRender(t *testing.T) {
	off := startWorker(t, nil)
	resp, body := post(t, off, "/v1/chat/completions/render", chatBody("hi", ""))
	if a := parse(t, body); resp.StatusCode != http.StatusForbidden || a.Error == nil || a.Error.Type != "PermissionDeniedError" {
		t.Errorf("status %d, %s; want 403 of the engine's own type", resp.StatusCode, body)
	}

	w := startWorker(t, func(cfg *Config) { cfg.EnableScaleOut = true })
	type rendered struct {
		TokenIDs       []uint32 `json:"token_ids"`
		SamplingParams struct {
			MaxTokens int `json:"max_tokens"`
		} `json:"sampling_params"`
		Model     string
		CacheSalt *string `json:"cache_salt"`
		Stream    bool
	}
	var chat rendered
	_, body = post(t, w, "/v1/chat/completions/render", chatBody("hi", `,"max_tokens":7,"stream":true,"cache_salt":"s"`))
	if err := json.Unmarshal([]byte(body), &chat); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	want, err := NewByteTokenizer().EncodeChat([]byte(chatBody("hi", "")))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(chat.TokenIDs, want) || chat.SamplingParams.MaxTokens != 7 || chat.Model != "tiny" || !chat.Stream || chat.CacheSalt == nil || *chat.CacheSalt != "s" {
		t.Errorf("rendered %s; want the ids %v", body, want)
	}
	var list []rendered
	_, body = post(t, w, "/v1/completions/render", `{"model":"tiny","prompt":["abc",  "de"]}`)
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list) != 2 || len(list[0].TokenIDs) != 3 || len(list[1].TokenIDs) != 2 {
		t.Errorf("%v, rendered %s; want a list of two", err, body)
	}
	if w.Stats().Seen != 0 {
		t.Errorf("%d generating requests seen; rendering is none", w.Stats().Seen)
	}
	if resp, body := post(t, w, "/v1/chat/completions/render", `{"model":"other","messages":[]}`); resp.StatusCode != http.StatusNotFound {
		t.Errorf("unknown model: status %d, %s", resp.StatusCode, body)
	}
}

func TestNoTopic(t *testing.T) {
	w := startWorker(t, func(cfg *Config) { cfg.NoTopic = true })
	if _, body := send(t, newRequest(t, http.MethodGet, w.URL()+"/kv_event_sources", "")); !strings.Contains(body, `"topic":""`) {
		t.Errorf("event sources %s; want the empty topic", body)
	}
}

// Each request that the engine took is accounted for once, whatever its end, with
// the counts that its usage shows or would have shown.
func TestRequestsAreAccountedFor(t *testing.T) {
	accounts := make(chan Account, 10)
	w := startWorker(t, func(c *Config) {
		c.EnablePromptTokensDetails = true
		c.Account = func(a Account) { accounts <- a }
	})
	ask := func(id, body string) {
		t.Helper()
		r := newRequest(t, http.MethodPost, w.URL()+"/v1/chat/completions", body)
		r.Header.Set("X-Request-Id", id)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body) // may be cut short
	}
	long := longText("", 100)
	prompt := len(long) + templateTokens
	for _, c := range []struct {
		id, extra string
		fault     Fault
		want      Account
	}{
		{"whole", `,"max_tokens":3,"n":2`, Fault{}, Account{Prompt: prompt, Output: 6, Whole: true}},
		{"stream", `,"max_tokens":3,"stream":true`, Fault{}, Account{Prompt: prompt, Cached: prompt / 32 * 32, Output: 3, Whole: true}},
		{"cut", `,"max_tokens":3,"stream":true`, Fault{DropAfterEvents: 2}, Account{Prompt: prompt, Cached: prompt / 32 * 32, Output: 1}},
		{"half", `,"max_tokens":3`, Fault{DropAfterEvents: 1}, Account{Prompt: prompt, Cached: prompt / 32 * 32, Output: 3}},
		{"refused", `,"max_tokens":-3`, Fault{}, Account{}},
	} {
		w.SetFault(c.fault)
		ask(c.id, chatBody(long, c.extra))
		if c.want == (Account{}) {
			continue
		}
		c.want.RequestID = c.id
		if got := <-accounts; got != c.want {
			t.Errorf("got %+v, want %+v", got, c.want)
		}
	}
	waitIdle(t, w)
	if n := len(accounts); n != 0 {
		t.Errorf("%d accounts too many", n)
	}
}

// TestSequencesAreBounded: one call can't have the worker take gigabytes for a list of
// prompts, by whatever route, spelling or number of choices.
func TestSequencesAreBounded(t *testing.T) {
	list := func(one string, n int) string {
		return "[" + strings.Repeat(one+",", n-1) + one + "]"
	}
	w := startWorker(t, nil)
	for _, body := range []string{
		`"prompt":` + list(`"a"`, maxSequences+1),
		`"prompt": [ ` + list(`[1]`, maxSequences+1)[1:],
		`"n":` + strconv.Itoa(maxSequences/2+1) + `,"prompt":["a","b"]`,
		`"n":` + strconv.Itoa(maxSequences+1) + `,"prompt":"a"`,
	} {
		resp, text := post(t, w, "/v1/completions", `{"model":"tiny","max_tokens":1,`+body+`}`)
		if resp.StatusCode != 400 || !strings.Contains(text, "sequences that this simulated worker takes") {
			t.Errorf("%.60s: got %d %.300s", body, resp.StatusCode, text)
		}
	}
	if resp, text := post(t, w, "/tokenize", `{"model":"tiny","prompt":`+list("1", maxSequences+1)+`}`); strings.Contains(text, "sequences") {
		t.Errorf("one prompt of many ids: got %d %.300s", resp.StatusCode, text)
	}
	vectors := startWorker(t, func(c *Config) { c.Embeddings = 4 })
	if resp, text := post(t, vectors, "/v1/embeddings", `{"model":"tiny","input":`+list(`"a"`, maxSequences+1)+`}`); resp.StatusCode != 400 || !strings.Contains(text, "sequences") {
		t.Errorf("embeddings: got %d %.300s", resp.StatusCode, text)
	}
}
