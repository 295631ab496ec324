package gateway

import (
	"encoding/json"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// healthz answers while the process can answer.
func (g *Gateway) healthz(ctx *fasthttp.RequestCtx, ex *exchange) {
	ctx.Response.Header.SetContentType("text/plain; charset=utf-8")
	ctx.Response.SetBodyString("ok")
	ex.finish(ending{outcome: tenancy.OutcomeCompleted, status: fasthttp.StatusOK})
}

// readyz answers whether traffic should come here. Its reasons are words of a
// fixed list, never a worker's name or address.
func (g *Gateway) readyz(ctx *fasthttp.RequestCtx, ex *exchange) {
	reasons := g.parts.Ready()
	if g.draining.Load() {
		reasons = append(reasons, "draining")
	}
	ctx.Response.Header.SetContentType("application/json")
	status := fasthttp.StatusOK
	body := []byte(`{"status":"ready"}`)
	if len(reasons) > 0 {
		status = fasthttp.StatusServiceUnavailable
		var err error
		body, err = json.Marshal(struct {
			Status  string   `json:"status"`
			Reasons []string `json:"reasons"`
		}{"not_ready", reasons})
		if err != nil {
			panic("BUG: a list of words can't fail to encode: " + err.Error())
		}
		ctx.Response.Header.Set("Retry-After", "5")
	}
	ctx.Response.SetStatusCode(status)
	ctx.Response.SetBody(body)
	ex.finish(ending{outcome: tenancy.OutcomeCompleted, status: status})
}
