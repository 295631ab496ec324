package openai

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

// refusal scans a body that must be refused.
func refusal(t testing.TB, req *wire.Request, op wire.Operation, body string) *wire.Error {
	t.Helper()
	err := Scan(req, op, []byte(body))
	var e *wire.Error
	if !errors.As(err, &e) {
		t.Fatalf("Scan(%q) = %v, want an *Error", body, err)
	}
	return e
}

func TestScanErrors(t *testing.T) {
	var req wire.Request
	f := func(op wire.Operation, body, code, param, message string) {
		t.Helper()
		e := refusal(t, &req, op, body)
		if e.Status != 400 || e.Code != code || e.Param != param || e.Message != message {
			t.Errorf("Scan(%q)\n got %d %s %q %s\nwant 400 %s %q %s", body, e.Status, e.Code, e.Param, e.Message, code, param, message)
		}
		if e.Body() != (wire.ErrorBody{Message: message, Type: "invalid_request_error", Param: param, Code: code}) || e.Error() != message {
			t.Errorf("the error's body is %+v", e.Body())
		}
	}
	syntax := func(body, what string) {
		t.Helper()
		f(wire.Chat, body, "invalid_json", "", "The request body is not valid JSON: "+what)
	}
	const send = ". Send one JSON object in UTF-8."
	syntax("", "it is empty (at byte 0)"+send)
	syntax(" \n", "it is empty (at byte 2)"+send)
	syntax("\xef\xbb\xbf{}", "it begins with a byte order mark (at byte 0)"+send)
	syntax(`{"a":1} x`, "more follows after the value (at byte 8)"+send)
	syntax(`{"a":1}{"a":1}`, "more follows after the value (at byte 7)"+send)
	syntax(`{"a":1`, "it ends too early (at byte 6)"+send)
	syntax(`{"a"`, "it ends too early (at byte 4)"+send)
	syntax(`{"a`, "it ends too early (at byte 3)"+send)
	syntax(`{"a":`, "it ends too early (at byte 5)"+send)
	syntax(`{"a":[`, "it ends too early (at byte 6)"+send)
	syntax(`{`, "it ends too early (at byte 1)"+send)
	syntax(`{"a":tru`, "it ends too early (at byte 8)"+send)
	syntax(`{"a":-`, "it ends too early (at byte 6)"+send)
	syntax(`{"a":1,}`, "a key in double quotes is expected (at byte 7)"+send)
	syntax(`{'a':1}`, "a key in double quotes is expected (at byte 1)"+send)
	syntax(`{"a" 1}`, "a colon is expected after a key (at byte 5)"+send)
	syntax(`{"a":1 "b":2}`, "a comma or a closing bracket is expected (at byte 7)"+send)
	syntax(`{"a":[1,]}`, "a value is expected (at byte 8)"+send)
	syntax(`{"a":}`, "a value is expected (at byte 5)"+send)
	syntax(`{"a":[1}`, "a comma or a closing bracket is expected (at byte 7)"+send)
	syntax(`{"a":truth}`, "a word other than true, false and null stands outside a string (at byte 5)"+send)
	syntax(`{"a":NaN}`, "NaN and Infinity are no JSON numbers (at byte 5)"+send)
	syntax(`{"a":Infinity}`, "NaN and Infinity are no JSON numbers (at byte 5)"+send)
	syntax(`{"a":-Infinity}`, "NaN and Infinity are no JSON numbers (at byte 6)"+send)
	syntax(`{"a":01}`, "a comma or a closing bracket is expected (at byte 6)"+send)
	syntax(`{"a":1.}`, "a number is not well formed (at byte 7)"+send)
	syntax(`{"a":.5}`, "a value is expected (at byte 5)"+send)
	syntax(`{"a":+1}`, "a value is expected (at byte 5)"+send)
	syntax(`{"a":1e}`, "a number is not well formed (at byte 7)"+send)
	syntax("{\"a\":\"x\ny\"}", "a string holds a control character that is not escaped (at byte 7)"+send)
	syntax(`{"a":"\x"}`, "a string holds an escape that does not exist (at byte 6)"+send)
	syntax(`{"a":"\u12g4"}`, "a string holds an escape that does not exist (at byte 6)"+send)
	syntax(`{"a":"\u12`, "a string holds an escape that does not exist (at byte 6)"+send)
	syntax("{\"a\":\"ok\xff\"}", "a string is not valid UTF-8 (at byte 8)"+send)
	syntax("{\"a\":\"\xed\xa0\x80\"}", "a string is not valid UTF-8 (at byte 6)"+send)
	syntax("{\"\xc0\xaf\":1}", "a string is not valid UTF-8 (at byte 2)"+send)
	syntax("{\xff}", "a key in double quotes is expected (at byte 1)"+send)
	syntax(strings.Repeat(`{"a":`, 200), "it nests too deep (at byte 640). At most 128 levels are allowed.")
	syntax(`[1,`, "it ends too early (at byte 3)"+send)
	f(wire.Chat, `[1]`, "invalid_json", "", "The request body must be a JSON object, not an array.")
	f(wire.Chat, ` "secret" `, "invalid_json", "", "The request body must be a JSON object, not a string.")
	f(wire.Chat, `null`, "invalid_json", "", "The request body must be a JSON object, not null.")

	// One that makes the body no JSON wins over one that came before it.
	syntax(`{"model":5,"stream":"x",`, "it ends too early (at byte 24)"+send)

	f(wire.Chat, `{}`, "invalid_request", "model", "`model` is missing. Name the model to use, as a string.")
	f(wire.Chat, `{"model":null}`, "invalid_request", "model", "`model` is missing. Name the model to use, as a string.")
	f(wire.Chat, `{"Model":"x"}`, "invalid_request", "model", "`model` is missing. Name the model to use, as a string.")
	f(wire.Chat, `{"model":""}`, "invalid_request", "model", "`model` is empty. Name the model to use.")
	f(wire.Chat, `{"model":"m"}`, "invalid_request", "messages", "`messages` is missing. Send the conversation as an array of messages.")
	f(wire.Chat, `{"model":"m","messages":null}`, "invalid_request", "messages", "`messages` is missing. Send the conversation as an array of messages.")

	chat := func(members, code, param, message string) {
		t.Helper()
		f(wire.Chat, `{"model":"m","messages":[]`+members+`}`, code, param, message)
	}
	wrong := func(members, param, message string) {
		t.Helper()
		chat(members, "invalid_request", param, message)
	}
	f(wire.Chat, `{"model":5}`, "invalid_request", "model", "`model` must be a string, not a number.")
	f(wire.Chat, `{"model":["secret"]}`, "invalid_request", "model", "`model` must be a string, not an array.")
	f(wire.Chat, `{"model":"a\ud800"}`, "invalid_request", "model",
		"`model` has an escape for half a surrogate pair, which is no character. Send both halves or neither.")
	wrong(`,"stream":"true"`, "stream", "`stream` must be true or false, not a string. Send it without quotes.")
	wrong(`,"stream":1`, "stream", "`stream` must be true or false, not a number.")
	wrong(`,"background":1`, "background", "`background` must be true or false, not a number.")
	wrong(`,"max_tokens":"100"`, "max_tokens", "`max_tokens` must be an integer, not a string. Send it without quotes.")
	wrong(`,"max_tokens":true`, "max_tokens", "`max_tokens` must be an integer, not a boolean.")
	wrong(`,"max_tokens":-1`, "max_tokens", "`max_tokens` must be an integer from 0 to 2147483647, not a negative number.")
	wrong(`,"max_tokens":1.5`, "max_tokens", "`max_tokens` must be an integer from 0 to 2147483647, not a number with a fraction or out of range.")
	wrong(`,"max_completion_tokens":2147483648`, "max_completion_tokens", "`max_completion_tokens` must be an integer from 0 to 2147483647, not a number out of range.")
	wrong(`,"max_output_tokens":1e30`, "max_output_tokens", "`max_output_tokens` must be an integer from 0 to 2147483647, not a number with a fraction or out of range.")
	wrong(`,"n":{}`, "n", "`n` must be an integer, not an object.")
	wrong(`,"best_of":[]`, "best_of", "`best_of` must be an integer, not an array.")
	wrong(`,"priority":-5`, "priority", "`priority` must be an integer from 0 to 2147483647, not a negative number.")
	wrong(`,"user":5`, "user", "`user` must be a string, not a number.")
	wrong(`,"cache_salt":5`, "cache_salt", "`cache_salt` must be a string, not a number.")
	wrong(`,"previous_response_id":5`, "previous_response_id", "`previous_response_id` must be a string, not a number.")
	wrong(`,"stream_options":[]`, "stream_options", "`stream_options` must be an object, not an array.")
	wrong(`,"stream_options":{"include_usage":"yes"}`, "stream_options.include_usage",
		"`stream_options.include_usage` must be true or false, not a string. Send it without quotes.")
	wrong(`,"stream_options":{"continuous_usage_stats":1}`, "stream_options.continuous_usage_stats",
		"`stream_options.continuous_usage_stats` must be true or false, not a number.")
	wrong(`,"kv_transfer_params":{"do_remote_decode":true}`, "kv_transfer_params", "`kv_transfer_params` belongs to the engine's operator. Remove it.")
	wrong(`,"ec_transfer_params":{}`, "ec_transfer_params", "`ec_transfer_params` belongs to the engine's operator. Remove it.")
	wrong(`,"vllm_xargs":{"kv_tr\u0061nsfer_params":"x"}`, "vllm_xargs.kv_transfer_params",
		"`vllm_xargs.kv_transfer_params` belongs to the engine's operator. Remove it.")
	wrong(`,"stream_interval":"5"`, "stream_interval", "`stream_interval` must be an integer, not a string. Send it without quotes.")
	wrong(`,"tools":{}`, "tools", "`tools` must be an array of tools, not an object.")
	wrong(`,"tools":[5]`, "tools[0]", "`tools[0]` must be an object, not a number.")
	wrong(`,"tools":[{},{"type":5}]`, "tools[1].type", "`tools[1].type` must be a string, not a number.")
	wrong(`,"tools":[{"function":"f"}]`, "tools[0].function", "`tools[0].function` must be an object, not a string.")
	wrong(`,"tools":[{"function":{"name":5}}]`, "tools[0].function.name", "`tools[0].function.name` must be a string, not a number.")

	messages := func(messages, param, message string) {
		t.Helper()
		f(wire.Chat, `{"model":"m","messages":`+messages+`}`, "invalid_request", param, message)
	}
	messages(`"hi"`, "messages", "`messages` must be an array of messages, not a string.")
	messages(`{}`, "messages", "`messages` must be an array of messages, not an object.")
	messages(`[{},"hi"]`, "messages[1]", "`messages[1]` must be an object, not a string.")
	messages(`[null]`, "messages[0]", "`messages[0]` must be an object, not null.")
	messages(`[{"role":1}]`, "messages[0].role", "`messages[0].role` must be a string, not a number.")
	messages(`[{"content":1}]`, "messages[0].content", "`messages[0].content` must be a string or an array of parts, not a number.")
	messages(`[{"content":{}}]`, "messages[0].content", "`messages[0].content` must be a string or an array of parts, not an object.")
	messages(`[{},{"content":[{},5]}]`, "messages[1].content[1]", "`messages[1].content[1]` must be an object or a string, not a number.")
	messages(`[{"content":[{"type":5}]}]`, "messages[0].content[0].type", "`messages[0].content[0].type` must be a string, not a number.")
	messages(`[{"content":[{"text":[]}]}]`, "messages[0].content[0].text", "`messages[0].content[0].text` must be a string, not an array.")

	prompt := func(prompt, param, message string) {
		t.Helper()
		f(wire.Completion, `{"model":"m","prompt":`+prompt+`}`, "invalid_request", param, message)
	}
	prompt(`5`, "prompt", "`prompt` must be a string, an array of strings, an array of token ids or an array of arrays of token ids, not a number.")
	prompt(`["a",5]`, "prompt[1]", "`prompt[1]` must be of the same kind as the elements before it, not a number.")
	prompt(`[1,"a"]`, "prompt[1]", "`prompt[1]` must be of the same kind as the elements before it, not a string.")
	prompt(`[1,[2]]`, "prompt[1]", "`prompt[1]` must be of the same kind as the elements before it, not an array.")
	prompt(`[null]`, "prompt[0]", "`prompt[0]` must be a string, a token id or an array of token ids, not null.")
	prompt(`[{}]`, "prompt[0]", "`prompt[0]` must be a string, a token id or an array of token ids, not an object.")
	prompt(`["a",null]`, "prompt[1]", "`prompt[1]` must be a string, a token id or an array of token ids, not null.")
	prompt(`[[1],[2,"a"]]`, "prompt[1][1]", "`prompt[1][1]` must be a token id, not a string.")
	prompt(`[1.5]`, "prompt[0]", "`prompt[0]` must be an integer from 0 to 2147483647, not a number with a fraction or out of range.")
	prompt(`[[-1]]`, "prompt[0][0]", "`prompt[0][0]` must be an integer from 0 to 2147483647, not a negative number.")
}

func TestScanDuplicates(t *testing.T) {
	var req wire.Request
	f := func(op wire.Operation, body, param string) {
		t.Helper()
		if e := refusal(t, &req, op, body); e.Code != "duplicate_key" || e.Param != param || e.Status != 400 {
			t.Errorf("Scan(%s) = %+v, want duplicate_key for %s", body, e, param)
		}
	}
	for _, name := range []string{
		"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of",
		"priority", "cache_salt", "user", "previous_response_id", "background", "stream_interval", "messages", "prompt", "input",
		"instructions", "system", "tools", "kv_transfer_params", "ec_transfer_params", "vllm_xargs",
	} {
		rest := `,"model":"m","messages":[]`
		switch name {
		case "model", "messages":
			rest = strings.Replace(rest, `,"`+name+`"`, `,"x"`, 1)
		}
		for _, op := range []wire.Operation{wire.Chat, wire.Completion} {
			value := "null"
			if name == "messages" && op == wire.Chat {
				value = "[]"
			}
			f(op, `{"`+name+`":`+value+`,"`+name+`":`+value+rest+`}`, name)
			escaped := `\u00` + string("0123456789abcdef"[name[0]>>4]) + string("0123456789abcdef"[name[0]&15]) + name[1:]
			f(op, `{"`+name+`":`+value+rest+`,"`+escaped+`":`+value+`}`, name)
		}
	}
	chat := func(members, param string) {
		t.Helper()
		f(wire.Chat, `{"model":"m","messages":[]`+members+`}`, param)
	}
	chat(`,"stream_options":{"include_usage":true,"include_us\u0061ge":false}`, "stream_options.include_usage")
	chat(`,"stream_options":{"continuous_usage_stats":true,"continuous_usage_stats":true}`, "stream_options.continuous_usage_stats")
	chat(`,"tools":[{"type":"function","type":"function"}]`, "tools[0].type")
	chat(`,"tools":[{"function":{"name":"a"},"function":{"name":"b"}}]`, "tools[0].function")
	chat(`,"tools":[{"function":{"name":"a","name":"b"}}]`, "tools[0].function.name")
	chat(`,"tools":[{"function":{"parameters":{"type":"a","type":"b"}}}]`, "tools[0].function")
	messages := func(messages, param string) {
		t.Helper()
		f(wire.Chat, `{"model":"m","messages":[`+messages+`]}`, param)
	}
	messages(`{"role":"user","r\u006fle":"system"}`, "messages[0].role")
	messages(`{},{"content":"a","content":"b"}`, "messages[1].content")
	messages(`{"content":null,"content":null}`, "messages[0].content")
	messages(`{"text":"a","text":"b"}`, "messages[0].text")
	messages(`{"content":[{},{"type":"text","type":"image_url"}]}`, "messages[0].content[1].type")
	messages(`{"content":[{"text":"a","text":"b"}]}`, "messages[0].content[0].text")
	messages(`{"content":[{"role":1,"role":2}]}`, "messages[0].content[0].role")
	messages(`{"tool_calls":[{"type":1,"type":2}]}`, "messages[0]")
	messages(`{"tools":[{},{"function":{"name":"a","name":"b"}}]}`, "messages[0].tools[1].function.name")
	f(wire.Responses, `{"model":"m","input":"","tools":[{},{"type":"namespace","tools":[{"name":"a","name":"b"}]}]}`, "tools[1].tools[0].name")

	// Anywhere else duplicates pass.
	for _, body := range []string{
		`{"model":"m","messages":[{"name":"a","name":"b","x":1,"x":2}],"x":{"model":1,"model":2,"role":1,"role":2},"seed":1,"seed":2}`,
		`{"model":"m","messages":[],"stream_options":{"x":1,"x":2},"tools":[{"x":1,"x":2,"function":{"x":1,"x":2}}]}`,
		`{"model":"m","messages":[],"Model":"a","Model":"b","MODEL":"c"}`,
	} {
		if err := Scan(&req, wire.Chat, []byte(body)); err != nil {
			t.Errorf("Scan(%s) = %v", body, err)
		}
	}
}

// No error may hold content of the body, whatever is wrong with it.
func TestScanErrorsHoldNoContent(t *testing.T) {
	const secret = "s3cr3t"
	var req wire.Request
	for _, body := range []string{
		`{"s3cr3t":1,"model":["s3cr3t"]}`, `{"model":"s3cr3t","messages":["s3cr3t"]}`, `"s3cr3t"`, `s3cr3t`,
		`{"s3cr3t" 1}`, `{"model":"m","messages":[{"role":{"s3cr3t":1}}]}`, `{"model":"m","messages":[],"n":"s3cr3t"}`,
		`{"model":"m","messages":[],"tools":[{"function":{"name":["s3cr3t"]}}]}`, `{"model":"s3cr3t","s3cr3t":"s3cr3t`,
		`{"model":"s3cr3t\ud800","messages":[]}`, `{"model":"` + strings.Repeat(secret, 100) + `","messages":[]}`,
		`{"model":"m","messages":[{"s3cr3t":{"type":"s3cr3t","type":"s3cr3t"}}]}`,
	} {
		e := refusal(t, &req, wire.Chat, body)
		if strings.Contains(e.Message, secret) || strings.Contains(e.Param, secret) {
			t.Errorf("Scan(%s) = %+v", body, e)
		}
	}
}

func TestScanPanicsOnUnknownOperation(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Scan(&wire.Request{}, 0, []byte(`{}`))
}
