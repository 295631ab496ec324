package tenancy

import "slices"

// operations are those of the policy format, in its order.
var operations = []string{
	"chat", "completion", "responses", "messages", "embeddings", "count_tokens", "tokenize", "detokenize", "stored_responses", "models",
}

// Operations lists the names that Scope.Operations may hold.
func Operations() []string { return slices.Clone(operations) }

// AllowsOperation reports whether the scope admits the operation, whatever the
// model. A nil Scope admits every one.
func (s *Scope) AllowsOperation(operation string) bool { return s.Allows("", operation) }

// AllowsModel reports whether the scope admits the model, whatever the operation.
// A nil Scope admits every one.
func (s *Scope) AllowsModel(model string) bool { return s == nil || allowsModel(s.Models, model) }
