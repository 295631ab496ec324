package tenancy

import "errors"

// ErrPending says that the ledger has a row that is not durable yet and goes on
// trying: nothing is lost unless the process ends before.
var ErrPending = errors.New("the row is not durable yet; the ledger keeps trying")
