package ledger

import (
	"errors"
	"sync"
	"testing"

	"github.com/sluicegate/sluice/tenancy/ledger/ledgertest"
)

var (
	theServer   *ledgertest.Server
	startServer sync.Once
)

// postgresServer is shared by the tests of this package, which run one after
// the other. TestMain stops it.
func postgresServer(t testing.TB) *ledgertest.Server {
	t.Helper()
	var err error
	startServer.Do(func() { theServer, err = ledgertest.New() })
	if errors.Is(err, ledgertest.ErrNotInstalled) {
		startServer = sync.Once{}
		if !ledgertest.Required() {
			t.Skip(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if theServer == nil {
		t.Fatal("the server did not start")
	}
	if err := theServer.Start(); err != nil {
		t.Fatal(err)
	}
	return theServer
}

// database makes an empty one and returns its connection string.
func database(t testing.TB) string {
	t.Helper()
	dsn, err := postgresServer(t).Database()
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

func pgExec(t testing.TB, dsn, text string) {
	t.Helper()
	if err := ledgertest.Exec(dsn, text); err != nil {
		t.Fatal(err)
	}
}
