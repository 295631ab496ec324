package simworker

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// serveEmbeddings handles /v1/embeddings of a worker with Config.Embeddings: an
// input as of a completion's prompt, or messages as of a chat. Each vector has
// length one and follows from its tokens alone.
func (w *Worker) serveEmbeddings(rw http.ResponseWriter, r *http.Request, body []byte) {
	w.counted(func() {
		fault, ok := w.takeFault(rw, r)
		if !ok {
			return
		}
		q, apiErr := w.newEmbeddings(r, body)
		if apiErr != nil {
			writeError(rw, apiErr)
			return
		}
		q.fault = fault
		defer q.account(r)
		if err := q.collect(r.Context()); err != nil {
			fail(rw, r, err)
			return
		}
		q.writeWhole(r, rw, q.appendEmbeddings(nil))
	})
}

// embeddings is one request at work: to the engine, the prefill of each input.
type embeddings struct {
	*generation
	prompts [][]uint32
	size    int
	base64  bool
}

func (w *Worker) newEmbeddings(r *http.Request, body []byte) (*embeddings, *apiError) {
	f, apiErr := parseObject(body)
	if apiErr != nil {
		return nil, apiErr
	}
	format := f.str("encoding_format")
	size := f.integer("dimensions", w.cfg.Embeddings)
	chat := f.get("messages") != nil
	if !chat && f.get("input") == nil {
		f.missing("input")
	}
	if format != "" && format != "float" && format != "base64" {
		f.wrong("encoding_format", "literal_error", "Input should be 'float' or 'base64'", f.get("encoding_format"))
	}
	if apiErr := f.err(); apiErr != nil {
		return nil, apiErr
	}
	if size < 1 || size > w.cfg.Embeddings {
		return nil, badRequest("dimensions", "dimensions must be from 1 to %d, got %d.", w.cfg.Embeddings, size)
	}
	// To the engine an input is a prompt after which nothing is generated. The one
	// token that this engine can't do without is left out of every count.
	inner := map[string]any{"max_tokens": 1}
	for _, name := range []string{"model", "cache_salt", "priority", "messages"} {
		if raw := f.get(name); raw != nil {
			inner[name] = raw
		}
	}
	if !chat {
		inner["prompt"] = f.get("input")
	}
	innerBody, err := json.Marshal(inner)
	if err != nil {
		return nil, badRequest("", "%s", err.Error())
	}
	prompts, apiErr := w.encode(innerBody, chat)
	if apiErr != nil {
		return nil, apiErr
	}
	g, apiErr := w.newGeneration(r, innerBody, chat)
	if apiErr != nil {
		return nil, apiErr
	}
	g.prefillOnly = true
	return &embeddings{generation: g, prompts: prompts, size: size, base64: format == "base64"}, nil
}

func (q *embeddings) appendEmbeddings(b []byte) []byte {
	b = appendString(append(b, `{"id":`...), "embd-"+randomHex(8))
	b = strconv.AppendInt(append(b, `,"object":"list","created":`...), time.Now().Unix(), 10)
	b = appendString(append(b, `,"model":`...), q.p.model)
	b = append(b, `,"data":[`...)
	for i, ids := range q.prompts {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendInt(b, `{"index":`, i)
		b = append(b, `,"object":"embedding","embedding":`...)
		b = append(q.appendVector(b, ids), '}')
	}
	u := q.usage()
	b = append(u.append(append(b, `],"usage":`...)), `,"prompt_tokens_details":null}}`...)
	return b
}

func (q *embeddings) appendVector(b []byte, ids []uint32) []byte {
	v := embed(ids, q.size)
	if !q.base64 {
		b = appendList(append(b, '['), v, func(b []byte, x float32) []byte { return strconv.AppendFloat(b, float64(x), 'g', -1, 32) })
		return append(b, ']')
	}
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return appendString(b, base64.StdEncoding.EncodeToString(raw))
}

// embed is the vector of a text.
func embed(ids []uint32, size int) []float32 {
	h := fnv.New64a()
	for _, id := range ids {
		_, _ = h.Write(binary.LittleEndian.AppendUint32(nil, id)) // never fails
	}
	rng := rand.New(rand.NewPCG(h.Sum64(), uint64(len(ids))))
	v := make([]float32, size)
	sum := 0.0
	for i := range v {
		x := rng.NormFloat64()
		v[i] = float32(x)
		sum += x * x
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

// serveOpenAPI describes the routes as far as the engine's own description is
// read by others: by their paths and methods.
func (w *Worker) serveOpenAPI(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	type operation struct {
		Summary string `json:"summary"`
	}
	paths := map[string]map[string]operation{}
	for path, methods := range w.mux {
		paths[path] = map[string]operation{}
		for m := range methods {
			paths[path][strings.ToLower(m)] = operation{Summary: fmt.Sprintf("%s %s", m, path)}
		}
	}
	delete(paths, "/openapi.json")
	b, err := json.Marshal(map[string]any{
		"openapi": "3.1.0", "info": map[string]string{"title": "FastAPI", "version": "0.1.0"}, "paths": paths,
	})
	if err != nil {
		panic("BUG: a description of constant texts can't fail to encode: " + err.Error())
	}
	writeJSON(rw, http.StatusOK, b)
}
