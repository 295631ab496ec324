package main

import "time"

// ReloadConfig says how the gateway notices that its files have changed. SIGHUP and a call of the admin
// listener reload them in any case.
type ReloadConfig struct {
	Watch bool          `yaml:"watch"` // false: only when asked
	Poll  time.Duration `yaml:"poll"`  // between looks where the file system does not tell of changes
}

func defaultReload() ReloadConfig { return ReloadConfig{Watch: true, Poll: 5 * time.Second} }

// reload checks how changes are noticed.
func (v *validator) reload() {
	v.duration("reload.poll", v.cfg.Reload.Poll, 100*time.Millisecond, time.Hour)
}
