// Package qostest has what the queue of package qos is tested against: a queue that
// does the same in the plainest way ([Reference]), and workers in virtual time
// ([Fleet]).
package qostest
