// Package verify finds out whether the token ids that are computed in this
// process are those of the engine, by asking workers' /tokenize: with fixed
// probes as soon as a worker is there, and with a sample of the live requests
// from then on.
//
// A verdict is about one model and one shape of request, because that is how
// tokenizers go wrong: one template prints tools in another order, another cuts a
// chain of turns, and a third model's pre-tokenizer is not the one its file
// names. Shapes that disagree are left to the workers, the others go on locally.
//
// docs/0002-tokens.md tells why it is built this way.
package verify
