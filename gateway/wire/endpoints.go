package wire

// Endpoints is a set of operations: those that a worker, or each worker of a pool, has
// a route for.
type Endpoints uint16

// EndpointsOf returns the set of the given operations.
func EndpointsOf(ops ...Operation) Endpoints {
	var s Endpoints
	for _, op := range ops {
		s |= 1 << op
	}
	return s
}

// Has tells whether op is in the set.
func (s Endpoints) Has(op Operation) bool { return s&(1<<op) != 0 }

// Operations lists all operations, in a fixed order.
func Operations() []Operation {
	return []Operation{Chat, Completion, Embeddings, Responses, Messages, CountTokens, Tokenize, Detokenize}
}
