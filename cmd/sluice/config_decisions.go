package main

import (
	"os"
	"path/filepath"

	"github.com/sluicegate/sluice/policy/decisionlog"
)

// DecisionLogConfig says what is written of policy decisions, and where. Without a path there is no log.
type DecisionLogConfig struct {
	Path        string   `yaml:"path"` // JSON lines; rotated files lie beside it
	MaxBytes    ByteSize `yaml:"maxBytes"`
	MaxFiles    int      `yaml:"maxFiles"` // rotated files that are kept; 0: all
	Compress    bool     `yaml:"compress"` // rotated files
	Sample      float64  `yaml:"sample"`   // share of plain allows that are kept
	Queue       int      `yaml:"queue"`    // records that wait for the disk
	QueueBytes  ByteSize `yaml:"queueBytes"`
	OnFull      string   `yaml:"onFull"`      // Drop the record, or Refuse the request
	HashKeyFile string   `yaml:"hashKeyFile"` // keys the hashes of users, sessions and addresses
	Plain       []string `yaml:"plain"`       // those of user, session_id and source_ip that are not hashed
	Mask        []string `yaml:"mask"`        // JSON pointers
	Drop        []string `yaml:"drop"`        // JSON pointers
	Gateway     string   `yaml:"gateway"`     // this gateway's name in the records; default: the machine's
}

// Values of DecisionLogConfig.OnFull.
const (
	onFullDrop   = "Drop"
	onFullRefuse = "Refuse"
)

// defaultDecisionLog writes nothing.
func defaultDecisionLog() DecisionLogConfig {
	c := decisionlog.DefaultConfig()
	return DecisionLogConfig{
		MaxBytes: ByteSize(c.MaxBytes), MaxFiles: c.MaxFiles, Compress: c.Compress, Sample: 1,
		Queue: c.Queue, QueueBytes: ByteSize(c.QueueBytes), OnFull: onFullDrop,
	}
}

// Enabled reports whether decisions are written.
func (c *DecisionLogConfig) Enabled() bool { return c.Path != "" }

// log returns the configuration of the log, without the key of the hashes.
func (c *DecisionLogConfig) log() decisionlog.Config {
	return decisionlog.Config{
		Path: c.Path, MaxBytes: int64(c.MaxBytes), MaxFiles: c.MaxFiles, Compress: c.Compress,
		Sample: map[string]float64{"allow": c.Sample}, Queue: c.Queue, QueueBytes: int64(c.QueueBytes),
		Refuse: c.OnFull == onFullRefuse, Plain: c.Plain, Mask: c.Mask, Drop: c.Drop, Gateway: c.Gateway,
	}
}

// decisionLog checks the decision log.
func (v *validator) decisionLog() {
	c := &v.cfg.DecisionLog
	if !c.Enabled() {
		if v.given("decisionLog.") {
			v.errorf("decisionLog.path", "is missing, should be the file to write; without it there is no decision log")
		}
		return
	}
	v.oneOf("decisionLog.onFull", c.OnFull, onFullDrop, onFullRefuse)
	if st, err := os.Stat(filepath.Dir(c.Path)); err != nil || !st.IsDir() {
		v.errorf("decisionLog.path", "the folder %s does not exist; make it first", filepath.Dir(c.Path))
	}
	lc := c.log()
	for _, p := range lc.Problems() {
		field := p.Field
		if field == "sample.allow" {
			field = "sample"
		}
		v.errorf("decisionLog."+field, "%s", p.Text)
	}
	if c.HashKeyFile == "" {
		v.warnf("decisionLog.hashKeyFile", "none: users, sessions and addresses that are not in decisionLog.plain are left out of the log")
	} else if _, err := readKey(c.HashKeyFile); err != nil && !isMissing(err) {
		v.errorf("decisionLog.hashKeyFile", "%v", err)
	}
}
