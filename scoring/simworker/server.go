package simworker

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// routes returns the worker's HTTP routes, with the methods of each.
func (w *Worker) routes() map[string]map[string]handler {
	get := func(h handler) map[string]handler { return map[string]handler{http.MethodGet: h} }
	post := func(h handler) map[string]handler { return map[string]handler{http.MethodPost: h} }
	routes := map[string]map[string]handler{
		"/v1/models":          get(w.serveModels),
		"/health":             get(w.serveHealth),
		"/ping":               {http.MethodGet: w.serveHealth, http.MethodPost: w.serveHealth},
		"/version":            get(w.serveVersion),
		"/load":               get(w.serveLoad),
		"/metrics":            get(w.serveMetrics),
		"/tokenize":           post(w.serveTokenize),
		"/detokenize":         post(w.serveDetokenize),
		"/kv_event_sources":   get(w.serveEventSources),
		"/reset_prefix_cache": post(w.serveReset),
		"/openapi.json":       get(w.serveOpenAPI),
	}
	if w.cfg.Embeddings > 0 {
		routes["/v1/embeddings"] = post(w.serveEmbeddings)
	} else {
		routes["/v1/chat/completions"] = post(func(rw http.ResponseWriter, r *http.Request, b []byte) { w.serveGenerating(rw, r, b, true) })
		routes["/v1/completions"] = post(func(rw http.ResponseWriter, r *http.Request, b []byte) { w.serveGenerating(rw, r, b, false) })
		routes["/v1/chat/completions/render"] = post(func(rw http.ResponseWriter, r *http.Request, b []byte) { w.serveRender(rw, r, b, true) })
		routes["/v1/completions/render"] = post(func(rw http.ResponseWriter, r *http.Request, b []byte) { w.serveRender(rw, r, b, false) })
		routes["/v1/responses"] = post(w.serveResponses)
		if !w.cfg.NoMessages {
			routes["/v1/messages"] = post(w.serveMessages)
			routes["/v1/messages/count_tokens"] = post(w.serveCountTokens)
		}
	}
	if w.cfg.FaultAPI {
		routes["/sim/fault"] = post(w.serveFault)
	}
	return routes
}

// handler serves a request whose body was read.
type handler func(rw http.ResponseWriter, r *http.Request, body []byte)

// serveHTTP routes a request, in the order of the engine's own layers: key,
// route, method.
func (w *Worker) serveHTTP(rw http.ResponseWriter, r *http.Request) {
	if !w.enter() {
		dropConnection(rw)
	}
	defer w.handlers.Done()
	rw.Header().Set("Server", "uvicorn")
	body, err := readBody(rw, r)
	if err != nil {
		// Nobody reads this if the client left.
		writeJSON(rw, http.StatusRequestEntityTooLarge, []byte(`{"detail":"Request Entity Too Large"}`))
		return
	}
	if r.URL.Path != "/metrics" && r.URL.Path != "/health" {
		w.remember(r, body)
	}
	if !w.authorized(r) {
		writeJSON(rw, http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
		return
	}
	methods, ok := w.mux[r.URL.Path]
	if !ok {
		writeJSON(rw, http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
		return
	}
	h, ok := methods[r.Method]
	if !ok {
		for m := range methods {
			rw.Header().Add("Allow", m)
		}
		writeJSON(rw, http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
		return
	}
	h(rw, r, body)
}

// authorized checks the key, which guards /v1 alone.
func (w *Worker) authorized(r *http.Request) bool {
	if w.cfg.APIKey == "" || !strings.HasPrefix(r.URL.Path, "/v1") {
		return true
	}
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+w.cfg.APIKey)) == 1
}

// remember keeps the request for Requests.
func (w *Worker) remember(r *http.Request, body []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.received = append(w.received, ReceivedRequest{
		Time: time.Now(), Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body,
	})
	if over := len(w.received) - w.cfg.KeepRequests; over > 0 {
		w.received = slices.Delete(w.received, 0, over)
	}
}

// serveGenerating counts a generating request while it is open.
func (w *Worker) serveGenerating(rw http.ResponseWriter, r *http.Request, body []byte, chat bool) {
	w.counted(func() { w.serveGenerate(rw, r, body, chat) })
}

// counted counts a request that keeps the engine busy while serve runs.
func (w *Worker) counted(serve func()) {
	w.mu.Lock()
	w.seen++
	w.open++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.open--; w.open == 0 {
			close(w.idle)
			w.idle = make(chan struct{})
		}
	}()
	serve()
}

func setJSON(rw http.ResponseWriter, n int) {
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Content-Length", strconv.Itoa(n))
}

func writeJSON(rw http.ResponseWriter, status int, body []byte) {
	setJSON(rw, len(body))
	rw.WriteHeader(status)
	_, _ = rw.Write(body)
}

func writeError(rw http.ResponseWriter, e *apiError) { writeJSON(rw, e.Status, e.body()) }

// served lists the model names, the base model first.
func (w *Worker) served() []string { return append([]string{w.cfg.Model}, w.cfg.LoRAs...) }

// resolveModel returns the name to answer with and the adapter behind it. A
// request without a model gets the base model.
func (w *Worker) resolveModel(name string) (model, lora string, ok bool) {
	switch {
	case name == "" || name == w.cfg.Model:
		return w.cfg.Model, "", true
	case slices.Contains(w.cfg.LoRAs, name):
		return name, name, true
	}
	return name, "", false
}

func (w *Worker) serveModels(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	b := append([]byte(nil), `{"object":"list","data":[`...)
	created := w.started.Unix()
	for i, name := range w.served() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = appendString(b, name)
		b = fmt.Appendf(b, `,"object":"model","created":%d,"owned_by":"vllm","root":`, created)
		b = appendString(b, "models/"+name)
		b = append(b, `,"parent":`...)
		if i == 0 {
			b = fmt.Appendf(b, `null,"max_model_len":%d`, w.cfg.MaxModelLen)
		} else {
			b = append(appendString(b, w.cfg.Model), `,"max_model_len":null`...)
		}
		b = fmt.Appendf(b, `,"permission":[{"id":"modelperm-%s","object":"model_permission","created":%d,"allow_create_engine":false,`+
			`"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,`+
			`"organization":"*","group":null,"is_blocking":false}]}`, randomHex(8), created)
	}
	writeJSON(rw, http.StatusOK, append(b, "]}"...))
}

func (w *Worker) serveHealth(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	rw.Header()["Content-Type"] = nil
	rw.Header().Set("Content-Length", "0")
	rw.WriteHeader(http.StatusOK)
}

func (w *Worker) serveVersion(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	b := appendString([]byte(`{"version":`), w.cfg.Version)
	writeJSON(rw, http.StatusOK, append(b, '}'))
}

// serveLoad answers like an engine that was not told to track its load.
func (w *Worker) serveLoad(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	writeJSON(rw, http.StatusOK, []byte(`{"server_load":0}`))
}

func (w *Worker) serveReset(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	writeJSON(rw, http.StatusOK, fmt.Appendf(nil, `{"success":%t}`, w.core.reset()))
}

func (w *Worker) serveFault(rw http.ResponseWriter, _ *http.Request, body []byte) {
	f, err := parseFault(body)
	if err != nil {
		writeError(rw, badRequest("", "%s", err.Error()))
		return
	}
	w.SetFault(f)
	writeJSON(rw, http.StatusOK, []byte(`{"success":true}`))
}

// serveTokenize answers the ids of a chat or a prompt, ignoring members it does
// not know.
func (w *Worker) serveTokenize(rw http.ResponseWriter, _ *http.Request, body []byte) {
	f, apiErr := parseObject(body)
	if apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	model, chat, withText := f.str("model"), f.get("messages") != nil, f.boolean("return_token_strs")
	if !chat {
		if raw := f.get("prompt"); raw == nil {
			f.missing("prompt")
		} else if raw[0] != '"' {
			f.wrong("prompt", "string_type", "Input should be a valid string", raw)
		}
	}
	if apiErr := f.err(); apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	if _, _, ok := w.resolveModel(model); !ok {
		writeError(rw, errUnknownModel(model, w.served()))
		return
	}
	ids, apiErr := w.tokenize(body, chat)
	if apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	b := fmt.Appendf(nil, `{"count":%d,"max_model_len":%d,"tokens":`, len(ids), w.cfg.MaxModelLen)
	b = appendIDs(b, ids)
	b = append(b, `,"token_strs":`...)
	if withText {
		b = append(b, '[')
		b = appendList(b, ids, func(b []byte, id uint32) []byte { return appendString(b, w.tok.Decode([]uint32{id})) })
		b = append(b, ']')
	} else {
		b = append(b, "null"...)
	}
	writeJSON(rw, http.StatusOK, append(b, '}'))
}

// tokenize returns the ids of a body with one prompt, which may be empty.
func (w *Worker) tokenize(body []byte, chat bool) ([]uint32, *apiError) {
	if chat {
		ids, err := w.tok.EncodeChat(body)
		if err != nil {
			return nil, badRequest("", "%s", err.Error())
		}
		return ids, nil
	}
	prompts, err := w.tok.EncodeCompletion(body)
	switch {
	case err != nil:
		return nil, badRequest("", "%s", err.Error())
	case len(prompts) != 1:
		return nil, badRequest("prompt", "one prompt is expected, got %d", len(prompts))
	}
	return prompts[0], nil
}

func (w *Worker) serveDetokenize(rw http.ResponseWriter, _ *http.Request, body []byte) {
	f, apiErr := parseObject(body)
	if apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	model := f.str("model")
	var ids []uint32
	switch raw := f.get("tokens"); {
	case raw == nil:
		f.missing("tokens")
	case json.Unmarshal(raw, &ids) != nil:
		f.wrong("tokens", "list_type", "Input should be a valid list", raw)
	}
	if apiErr := f.err(); apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	if _, _, ok := w.resolveModel(model); !ok {
		writeError(rw, errUnknownModel(model, w.served()))
		return
	}
	b := appendString([]byte(`{"prompt":`), w.tok.Decode(ids))
	writeJSON(rw, http.StatusOK, append(b, '}'))
}

// serveEventSources shows the publisher's settings by rank; none without one.
func (w *Worker) serveEventSources(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	if w.pub == nil {
		writeJSON(rw, http.StatusOK, []byte("{}"))
		return
	}
	b := append([]byte(nil), `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":`...)
	b = appendString(b, w.advertised(w.cfg.AdvertiseEvents, w.pub.eventsAddr()))
	b = append(b, `,"replay_endpoint":`...)
	if w.ReplayEndpoint() == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, w.advertised(w.cfg.AdvertiseReplay, w.pub.replayAddr()))
	}
	b = fmt.Appendf(b, `,"buffer_steps":%d,"hwm":%d,"max_queue_size":%d,"topic":`, w.cfg.BufferSteps, w.cfg.HWM, w.cfg.HWM)
	b = appendString(b, w.topic())
	writeJSON(rw, http.StatusOK, append(b, "}}"...))
}

// addLoadHeader adds the load that a client may ask for on answers that are no
// stream.
func (w *Worker) addLoadHeader(rw http.ResponseWriter, r *http.Request) {
	st := w.core.stats()
	switch format := r.Header.Get("Endpoint-Load-Metrics-Format"); format {
	case "JSON", "json":
		rw.Header().Set("Endpoint-Load-Metrics", fmt.Sprintf(`JSON {"named_metrics": {"kv_cache_usage_perc": %s, "num_requests_waiting": %d}}`,
			pyFloat(st.Usage()), st.Waiting))
	case "TEXT", "text":
		rw.Header().Set("Endpoint-Load-Metrics", fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%s, named_metrics.num_requests_waiting=%d",
			pyFloat(st.Usage()), st.Waiting))
	}
}
