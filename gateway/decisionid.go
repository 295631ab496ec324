package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// decisionIDHeader names the decision in the answer to its request, and so in
// what a client reports.
const decisionIDHeader = "x-sluice-decision-id"

// newDecisionID is a UUID of version 7 (RFC 9562, section 5.7): 48 bits of Unix
// milliseconds, then 74 random ones. Ids of one moment lie side by side in a
// ledger's index, and none can be guessed from another.
func newDecisionID(now time.Time) string {
	var b [16]byte
	if _, err := rand.Read(b[6:]); err != nil {
		panic("BUG: crypto/rand can't fail: " + err.Error())
	}
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		b[i] = byte(ms >> (8 * (5 - i)))
	}
	b[6] = b[6]&0x0f | 0x70 // version 7
	b[8] = b[8]&0x3f | 0x80 // the variant of the RFC
	var text [36]byte
	at := 0
	for i, group := range [...][]byte{b[:4], b[4:6], b[6:8], b[8:10], b[10:]} {
		if i > 0 {
			text[at] = '-'
			at++
		}
		at += hex.Encode(text[at:], group)
	}
	return string(text[:])
}
