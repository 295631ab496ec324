package simworker

import (
	"math"
	"strconv"
)

// drawn is a token whose log-probability the client asked for.
type drawn struct {
	token  uint32
	offset int // length of the text before it
}

// fakeLogprob returns a plausible log-probability for a token, the same each
// time. rank 0 is the token drawn, later ones are less likely.
func fakeLogprob(token uint32, rank int) float64 {
	h := uint64(token)*0x9e3779b97f4a7c15 + uint64(rank)
	h ^= h >> 29
	spread := float64(h%1000) / 1000
	return -math.Log(50_000) - spread - float64(rank)
}

// alternative returns the text of the token of rank k where token was drawn.
func (g *generation) alternative(token uint32, k int) string {
	return g.w.tok.Decode([]uint32{uint32((int(token) + k) % g.w.tok.VocabSize())})
}

// appendLogprobs writes the logprobs of one event or text: null if the client
// did not ask, else in the form of the route.
func (g *generation) appendLogprobs(b []byte, tokens []drawn) []byte {
	switch {
	case !g.p.logprobs || len(tokens) == 0:
		return append(b, "null"...)
	case g.p.chat:
		b = append(b, `{"content":[`...)
		b = appendList(b, tokens, g.appendChatLogprob)
		return append(b, "]}"...)
	}
	b = append(b, `{"text_offset":[`...)
	b = appendList(b, tokens, func(b []byte, d drawn) []byte { return strconv.AppendInt(b, int64(d.offset), 10) })
	b = append(b, `],"token_logprobs":[`...)
	b = appendList(b, tokens, func(b []byte, d drawn) []byte { return appendFloat(b, fakeLogprob(d.token, 0)) })
	b = append(b, `],"tokens":[`...)
	b = appendList(b, tokens, func(b []byte, d drawn) []byte { return appendString(b, g.alternative(d.token, 0)) })
	b = append(b, `],"top_logprobs":[`...)
	b = appendList(b, tokens, g.appendTopLogprobs)
	return append(b, "]}"...)
}

func appendList[T any](b []byte, list []T, one func([]byte, T) []byte) []byte {
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, v)
	}
	return b
}

func appendFloat(b []byte, v float64) []byte { return strconv.AppendFloat(b, v, 'g', -1, 64) }

// appendTopLogprobs writes a completion's alternatives for one token.
func (g *generation) appendTopLogprobs(b []byte, d drawn) []byte {
	b = append(b, '{')
	for k := range max(1, g.p.topLogprobs) {
		if k > 0 {
			b = append(b, ',')
		}
		b = appendString(b, g.alternative(d.token, k))
		b = append(b, ':')
		b = appendFloat(b, fakeLogprob(d.token, k))
	}
	return append(b, '}')
}

// appendChatLogprob writes a chat's entry for one token.
func (g *generation) appendChatLogprob(b []byte, d drawn) []byte {
	b = g.appendRank(b, d.token, 0)
	b = append(b, `,"top_logprobs":[`...)
	for k := range g.p.topLogprobs {
		if k > 0 {
			b = append(b, ',')
		}
		b = append(g.appendRank(b, d.token, k), '}')
	}
	return append(b, "]}"...)
}

// appendRank writes the members of the token of rank k, unclosed.
func (g *generation) appendRank(b []byte, token uint32, k int) []byte {
	text := g.alternative(token, k)
	b = append(b, `{"token":`...)
	b = appendString(b, text)
	b = append(b, `,"logprob":`...)
	b = appendFloat(b, fakeLogprob(token, k))
	b = append(b, `,"bytes":[`...)
	b = appendList(b, []byte(text), func(b []byte, c byte) []byte { return strconv.AppendUint(b, uint64(c), 10) })
	return append(b, ']')
}
