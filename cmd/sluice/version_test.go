package main

import (
	"runtime/debug"
	"testing"
)

func TestVersionFrom(t *testing.T) {
	f := func(main string, settings map[string]string, want string) {
		t.Helper()
		info := &debug.BuildInfo{Main: debug.Module{Version: main}}
		for k, v := range settings {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: k, Value: v})
		}
		if got := versionFrom(info); got != want {
			t.Errorf("%q %v: got %q, want %q", main, settings, got, want)
		}
	}
	f("v0.1.0", nil, "v0.1.0")
	f("(devel)", nil, "devel")
	f("", map[string]string{"vcs.revision": "0123456789abcdef0123", "vcs.modified": "false"}, "devel-0123456789ab")
	f("(devel)", map[string]string{"vcs.revision": "0123456789abcdef0123", "vcs.modified": "true"}, "devel-0123456789ab-dirty")
	f("(devel)", map[string]string{"vcs.modified": "true"}, "devel")
}
