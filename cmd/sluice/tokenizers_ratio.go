package main

import "sync"

const (
	// ratioDecay is what remains of the weight of an answer with each that
	// follows: the last few hundred count.
	ratioDecay = 0.995
	// ratioSpread bounds what is learned, to so many times more or less than what
	// is configured: a client could send nothing but what tokenizers are bad at.
	ratioSpread = 4
	// ratioWeight is the weight of the configured value, in tokens.
	ratioWeight = 1000
)

// tokenRatio learns how many bytes of text a model has in a token, from answers.
// It is what the length of a prompt without ids is estimated by when a worker is
// chosen. Limits and policies go by the configured ratio, which stays.
type tokenRatio struct {
	mu            sync.Mutex
	configured    float64
	bytes, tokens float64
}

// start sets what is assumed until something is learned.
func (r *tokenRatio) start(bytesPerToken float64) {
	r.configured, r.bytes, r.tokens = bytesPerToken, bytesPerToken*ratioWeight, ratioWeight
}

// learn takes in an answer's prompt.
func (r *tokenRatio) learn(bytes, tokens int) {
	if bytes <= 0 || tokens <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes = ratioDecay*r.bytes + float64(bytes)
	r.tokens = ratioDecay*r.tokens + float64(tokens)
}

// bytesPerToken is the ratio as of now.
func (r *tokenRatio) bytesPerToken() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(max(r.bytes/r.tokens, r.configured/ratioSpread), r.configured*ratioSpread)
}
