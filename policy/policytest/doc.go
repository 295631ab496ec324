// Package policytest runs the PolicyTest documents that stand beside policies:
// each test is one request as expressions see it, and what is expected of the
// decision. It also counts which outcomes of which rules the tests have seen.
//
// Every test is run again with the bindings in other orders; a decision that
// depends on the order fails it.
package policytest
