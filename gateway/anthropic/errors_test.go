package anthropic

import (
	"encoding/json"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

func TestAppendError(t *testing.T) {
	f := func(status int, want string) {
		t.Helper()
		e := wire.ErrorBody{Message: "no \"x\"\nhere", Type: "ignored", Param: "ignored", Code: "some_code"}
		body := Codec{}.AppendError([]byte("x"), e, status, "r-1")
		if got, whole := string(body), `x{"type":"error","error":{"type":"`+want+`","message":"no \"x\"\nhere","details":{"error_code":"some_code"}},"request_id":"r-1"}`; got != whole {
			t.Errorf("status %d:\n got %s\nwant %s", status, got, whole)
		}
		if !json.Valid(body[1:]) {
			t.Errorf("status %d: no JSON: %s", status, body[1:])
		}
		event := Codec{}.AppendErrorEvent(nil, e, status, "r-1", 7)
		if got, whole := string(event), "event: error\ndata: "+string(body[1:])+"\n\n"; got != whole {
			t.Errorf("status %d: the event is %q, want %q", status, got, whole)
		}
	}
	f(400, "invalid_request_error")
	f(401, "authentication_error")
	f(403, "permission_error")
	f(404, "not_found_error")
	f(405, "invalid_request_error")
	f(408, "timeout_error")
	f(413, "request_too_large")
	f(429, "rate_limit_error")
	f(500, "api_error")
	f(502, "api_error")
	f(503, "api_error")
	f(504, "timeout_error")
	f(529, "overloaded_error")
}
