// Package discovery knows where the workers are and how they are: it checks
// their health, reads their metrics, makes sure they serve the model they are
// configured for, and learns where they publish cache events.
//
// A [Checker] follows the workers that it is given and the lists that a
// [Discoverer] finds: [File] watches a file, [DNS] asks for records. It tells a
// [Fleet] which workers there are, which of them may be picked and why not, how
// much cache they have, how loaded they say they are and which LoRA adapters
// they have loaded. Requests report their outcome with [Checker.ReportFailure]
// and [Checker.ReportSuccess]; a worker that fails several in a row is set aside
// for a while, longer each time, unless it is the last one of its pool. One that
// comes back is given one request at a time until one has gone well.
//
// A worker that a list no longer has gets no further request at once, keeps
// those it has, and is forgotten when the last one is done. Listed again it is
// another worker, which starts cold. docs/0013-workers.md says why lists are
// treated as they are.
//
// A worker whose process is gone or was replaced has an empty cache. The
// Checker notices by a refused connection, by failed checks, by a new start
// time and by counters that went back; it then drops the worker's view and has
// its event subscriptions started anew through [Config].OnSources.
//
// Event subscriptions themselves live in package kvevents; the two packages
// meet only where the program is wired together.
package discovery
