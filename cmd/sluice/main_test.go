package main

import (
	"context"
	"os"
	"testing"
	"time"
)

// asSluice, set in the environment, makes this test binary the program that it
// tests, so that a test can run it as a process of its own.
const asSluice = "SLUICE_TEST_AS_SLUICE"

func TestMain(m *testing.M) {
	if os.Getenv(asSluice) != "" {
		os.Exit(execute(context.Background(), time.Now, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}
