// Package wire is what the gateway and its dialects tell each other: what a
// scan has found in a request body, what must change in it, what the events of
// an answer are, and errors in the form in which every dialect can write them.
//
// It knows no dialect and does nothing itself. A dialect reads bytes into these
// types and writes them out of these types; the gateway decides by them.
package wire
