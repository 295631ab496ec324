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

// readyBody is the body of /readyz. Reasons and details are words of fixed lists,
// never a name, a path or an address.
type readyBody struct {
	Status  string   `json:"status"`
	Reasons []string `json:"reasons,omitempty"`
	// Details say what is amiss, whether or not traffic should come here.
	Details []string `json:"details,omitempty"`
}

// readyz answers whether traffic should come here.
func (g *Gateway) readyz(ctx *fasthttp.RequestCtx, ex *exchange) {
	reasons := g.parts.Ready()
	if g.draining.Load() {
		reasons = append(reasons, "draining")
	}
	said := readyBody{Status: "ready", Reasons: reasons}
	if g.parts.Details != nil {
		said.Details = g.parts.Details()
	}
	ctx.Response.Header.SetContentType("application/json")
	status := fasthttp.StatusOK
	if len(reasons) > 0 {
		said.Status, status = "not_ready", fasthttp.StatusServiceUnavailable
		ctx.Response.Header.Set("Retry-After", "5")
	}
	body, err := json.Marshal(said)
	if err != nil {
		panic("BUG: lists of words can't fail to encode: " + err.Error())
	}
	ctx.Response.SetStatusCode(status)
	ctx.Response.SetBody(body)
	ex.finish(ending{outcome: tenancy.OutcomeCompleted, status: status})
}
