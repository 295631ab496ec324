package main

import "time"

// ResponsesConfig is about stored responses: those that clients of /v1/responses go on from or ask for again.
type ResponsesConfig struct {
	Store   bool          `yaml:"store"`   // remember whose a response is, and which worker keeps it
	Keep    time.Duration `yaml:"keep"`    // how long
	Entries int           `yaml:"entries"` // how many
}

func defaultResponses() ResponsesConfig { return ResponsesConfig{Keep: time.Hour, Entries: 100_000} }

// most is how many responses are remembered.
func (c *ResponsesConfig) most() int {
	if !c.Store {
		return 0
	}
	return c.Entries
}

func (v *validator) responses() {
	r := &v.cfg.Responses
	v.duration("responses.keep", r.Keep, time.Minute, 31*24*time.Hour)
	v.count("responses.entries", int64(r.Entries), 1, 10_000_000)
}
