package rig

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of CPU times in /proc, the same on every Linux that Go
// runs on.
const clockTick = 10 * time.Millisecond

// pids are those of the process and all that it has started.
func (p *Process) pids() []int {
	root := p.cmd.Process.Pid
	var pids []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []int{root}
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if pgid, err := syscall.Getpgid(pid); err == nil && pgid == root {
			pids = append(pids, pid)
		}
	}
	return pids
}

// CPU is the processor time that the process and its children have used.
func (p *Process) CPU() time.Duration {
	var sum time.Duration
	for _, pid := range p.pids() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may hold anything; user and system time are the
		// 12th and 13th field after it.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 13 {
			continue
		}
		for _, f := range fields[11:13] {
			if n, err := strconv.ParseInt(f, 10, 64); err == nil {
				sum += time.Duration(n) * clockTick
			}
		}
	}
	return sum
}

// RSS is the memory that the process and its children hold, in bytes.
func (p *Process) RSS() int64 { return p.memory("VmRSS:") }

// PeakRSS is the most that they have held so far, in bytes.
func (p *Process) PeakRSS() int64 { return p.memory("VmHWM:") }

func (p *Process) memory(field string) int64 {
	var sum int64
	for _, pid := range p.pids() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, field); ok {
				if kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
					sum += kb << 10
				}
			}
		}
	}
	return sum
}

// MachineBusy returns the CPU time that all processes of the machine have
// used, and all there was.
func MachineBusy() (busy, all time.Duration, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("cannot tell how busy the machine is: %w", err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, f := range strings.Fields(line)[1:] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("cannot tell how busy the machine is: %w", err)
		}
		if i > 7 { // guest times are in user times already
			break
		}
		all += time.Duration(n) * clockTick
		if i != 3 && i != 4 { // idle, waiting for disks
			busy += time.Duration(n) * clockTick
		}
	}
	return busy, all, nil
}

// Machine says what the driver runs on.
func Machine() string {
	model := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.Trim(rest, " \t:\n")
				break
			}
		}
	}
	return fmt.Sprintf("%d x %s, %s", runtime.NumCPU(), model, runtime.Version())
}
