// Package vllm is what the engine says in its own errors, which are alike on all
// of its routes, whatever dialect those are of. Nothing of an error body is
// relayed: [MapError] and [MapStreamError] rebuild it.
//
// Nothing in this package logs.
package vllm
