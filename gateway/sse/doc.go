// Package sse frames server-sent events over bytes. It knows nothing of what
// an event says.
//
// The gateway relays a worker's events unchanged and whole: an event reaches
// the client with the exact bytes the worker sent, at once, and half an event
// never does. [Scanner] therefore hands out both views of each event: its raw
// bytes up to and with the blank line, and its parsed name and data. Neither
// depends on where the network cut the stream into reads.
//
// The format is the "text/event-stream" section of the WHATWG HTML standard.
package sse
