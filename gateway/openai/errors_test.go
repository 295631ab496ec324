package openai

import (
	"encoding/json"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

func TestAppendError(t *testing.T) {
	f := func(e wire.ErrorBody, want string) {
		t.Helper()
		if got := string(AppendError([]byte("x"), e)); got != "x"+want {
			t.Errorf("AppendError(%+v) = %s, want x%s", e, got, want)
		}
		if got := string(AppendErrorEvent([]byte("x"), e)); got != "xdata: "+want+"\n\n" {
			t.Errorf("AppendErrorEvent(%+v) = %q", e, got)
		}
		var back struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		if err := json.Unmarshal([]byte(want), &back); err != nil {
			t.Fatal(err)
		}
		if back.Error.Message != e.Message || back.Error.Type != e.Type {
			t.Errorf("%s reads back as %+v", want, back)
		}
		if (back.Error.Param == nil) != (e.Param == "") || (back.Error.Code == nil) != (e.Code == "") {
			t.Errorf("in %s, what is empty is not null", want)
		}
	}
	f(wire.ErrorBody{Message: "No.", Type: "invalid_request_error", Param: "model", Code: "model_not_found"},
		`{"error":{"message":"No.","type":"invalid_request_error","param":"model","code":"model_not_found"}}`)
	f(wire.ErrorBody{Message: "a \"b\"\n\r\n<é>", Type: "server_error"},
		`{"error":{"message":"a \"b\"\n\r\n<é>","type":"server_error","param":null,"code":null}}`)
}
