package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// engine answers as a vLLM worker does, with no time to think: answers are made
// once, when it starts. It speaks just enough HTTP for the clients of this
// benchmark, so that its own cost is a small and constant part of every figure.
type engine struct {
	unary  []byte
	events [][]byte // of a stream, framed as chunks
	usage  []byte   // the event that only some ask for
	done   []byte
	gap    time.Duration // between two events
}

// chunked frames one event as a chunk of HTTP/1.1.
func chunked(event string) []byte {
	return fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event)
}

func response(contentType, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nServer: stub\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", contentType, len(body), body)
}

func newEngine(tokens int, gap time.Duration) *engine {
	const head = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"` + modelName + `",`
	const usage = `"usage":{"prompt_tokens":260,"total_tokens":276,"completion_tokens":16}`
	word := "lorem ipsum dolor "
	e := &engine{gap: gap}
	e.unary = response("application/json", `{"id":"chatcmpl-1","object":"chat.completion","created":1790000000,"model":"`+modelName+
		`","choices":[{"index":0,"message":{"role":"assistant","content":"`+strings.Repeat(word, tokens)+
		`"},"logprobs":null,"finish_reason":"stop"}],`+usage+`}`)
	choice := func(delta, finish string) []byte {
		return chunked("data: " + head + `"choices":[{"index":0,"delta":` + delta + `,"logprobs":null,"finish_reason":` + finish + "}]}\n\n")
	}
	e.events = append(e.events, choice(`{"role":"assistant","content":""}`, "null"))
	for range tokens - 1 {
		e.events = append(e.events, choice(`{"content":"`+word+`"}`, "null"))
	}
	e.events = append(e.events, choice(`{"content":"`+word+`"}`, `"stop"`))
	e.usage = chunked("data: " + head + `"choices":[],` + usage + "}\n\n")
	e.done = append(chunked("data: [DONE]\n\n"), "0\r\n\r\n"...)
	return e
}

// serve accepts connections until ctx ends, and waits for those that are left.
func (e *engine) serve(ctx context.Context, ln net.Listener, tlsConfig *tls.Config) error {
	var group sync.WaitGroup
	defer group.Wait()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	for {
		nc, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("cannot accept: %w", err)
		}
		if tlsConfig != nil {
			nc = tls.Server(nc, tlsConfig)
		}
		group.Go(func() {
			end := context.AfterFunc(ctx, func() { _ = nc.Close() })
			defer end()
			defer nc.Close()
			_ = e.serveConn(nc) // its client left, or the benchmark has ended
		})
	}
}

func (e *engine) serveConn(nc net.Conn) error {
	br := bufio.NewReaderSize(nc, 8<<10)
	var body []byte
	for {
		path, length, err := readRequestHead(br)
		if err != nil {
			return err
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(br, body); err != nil {
			return err
		}
		if path == "/v1/chat/completions" && flagged(body, "stream") {
			err = e.stream(nc, flagged(body, "include_usage"))
		} else {
			_, err = nc.Write(e.answer(path))
		}
		if err != nil {
			return err
		}
	}
}

// flagged reports whether a body has a key with the value true, written with or
// without a space.
func flagged(body []byte, key string) bool {
	quoted := []byte(`"` + key + `":`)
	_, after, ok := bytes.Cut(body, quoted)
	return ok && bytes.HasPrefix(bytes.TrimLeft(after, " "), []byte("true"))
}

// readRequestHead reads a request line and its headers.
func readRequestHead(br *bufio.Reader) (path string, length int, err error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return "", 0, err
	}
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return "", 0, errors.New("the request line has not three parts")
	}
	path = string(fields[1])
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return "", 0, err
		}
		if len(bytes.TrimRight(line, "\r\n")) == 0 {
			return path, length, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return "", 0, err
			}
		}
		if bytes.EqualFold(name, []byte("transfer-encoding")) {
			return "", 0, errors.New("chunked requests are not served")
		}
	}
}

func (e *engine) answer(path string) []byte {
	switch path {
	case "/v1/chat/completions":
		return e.unary
	case "/health", "/ping":
		return response("text/plain", "")
	case "/version":
		return response("application/json", `{"version":"0.32.0"}`)
	case "/v1/models":
		return response("application/json", `{"object":"list","data":[{"id":"`+modelName+`","object":"model","created":1790000000,"owned_by":"vllm","root":"`+modelName+`","parent":null,"max_model_len":131072}]}`)
	case "/metrics":
		return response("text/plain; version=0.0.4", "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\""+modelName+"\",engine=\"0\"} 0\n"+
			"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\""+modelName+"\",engine=\"0\"} 0\n"+
			"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{model_name=\""+modelName+"\",engine=\"0\"} 0\n")
	}
	return []byte("HTTP/1.1 404 Not Found\r\nServer: stub\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n{\"detail\":\"Not Found\"}")
}

// stream writes one event after the other, each with a write of its own, as an
// engine does.
func (e *engine) stream(nc net.Conn, usage bool) error {
	const head = "HTTP/1.1 200 OK\r\nServer: stub\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	if _, err := io.WriteString(nc, head); err != nil {
		return err
	}
	for i, ev := range e.events {
		if e.gap > 0 && i > 1 {
			time.Sleep(e.gap)
		}
		if _, err := nc.Write(ev); err != nil {
			return err
		}
	}
	if usage {
		if _, err := nc.Write(e.usage); err != nil {
			return err
		}
	}
	_, err := nc.Write(e.done)
	return err
}
