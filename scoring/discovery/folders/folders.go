// Package folders tells of files in folders that have been written, made, renamed or
// removed. It says nothing of a file that stays open for writing, such as a database or
// a log: a gateway whose ledger lies in a watched folder writes to it several times a
// request, and being told each time costs more than the request's own hand-overs.
package folders

import "errors"

// ErrMissed says that changes were missed: whoever follows files looks at them all.
var ErrMissed = errors.New("changes of files were missed")
