package gateway

var (
	routeModels = &route{
		template: "/v1/models", operation: "models", allow: "GET, HEAD, OPTIONS", get: true,
		handle: (*Gateway).listModels,
	}
	routeModel = &route{
		template: "/v1/models/{id}", operation: "models", allow: "GET, HEAD, OPTIONS", get: true,
		handle: (*Gateway).getModel,
	}
	routeHealthz = &route{
		template: "/healthz", allow: "GET, HEAD, OPTIONS", get: true, open: true,
		handle: (*Gateway).healthz,
	}
	routeReadyz = &route{
		template: "/readyz", allow: "GET, HEAD, OPTIONS", get: true, open: true,
		handle: (*Gateway).readyz,
	}

	metaRoutes = []*route{routeModels, routeModel, routeHealthz, routeReadyz}

	// routeNone stands in metrics and logs for a path that is no route.
	routeNone = &route{template: "none"}
)
