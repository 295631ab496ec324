package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/sluicegate/sluice/policy"
)

// MaxLine is the longest line that is read, in bytes. A record's variables are
// bounded, so that a longer line is no record.
const MaxLine = 4 << 20

// maxFaults bounds the lines that a report names one by one.
const maxFaults = 20

// Options choose what is compared. The zero value compares everything.
type Options struct {
	// Apart says that the sets were compiled without the gateway's configuration
	// ([policy.Config.AnyNames]), so that what depends on it is not compared:
	// pools always, and without a baseline everything but the verdicts.
	Apart bool
}

// Report is what a replay has found.
type Report struct {
	// Lines of the log, Decisions that were judged, Others that are records of
	// other types.
	Lines, Decisions, Others int
	// Changed decisions have at least one Change that is none of Indeterminate;
	// Undecided ones have no other.
	Changed, Undecided int
	// Broken counts the lines that cannot be read; Faults names the first of
	// them. A last line that is cut off counts as Truncated only: its writer was
	// ended.
	Broken, Truncated int
	Faults            []Fault
	// Revisions counts the decisions by the revision that made them.
	Revisions map[string]int
	// Changes, the gravest kinds first, then by tenant and rule.
	Changes []Change
	// Baseline and Candidate are the revisions that were compared; Baseline is
	// empty where the log's own outcomes were.
	Baseline, Candidate string
}

// Fault is a line that cannot be read. Text holds nothing of the line.
type Fault struct {
	Log  string
	Line int
	Text string
}

// Log is one file of a decision log, opened when its turn comes.
type Log struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// Run reads the files of a decision log and judges every decision by candidate,
// and by baseline unless that is nil; then the outcome in the record stands for
// it. The error is one of reading, or of ctx, which is looked at for each line;
// faults of single lines are in the report. Both sets may be used by others
// meanwhile.
func Run(ctx context.Context, logs []Log, baseline, candidate *policy.Set, o Options) (*Report, error) {
	r := &run{
		ctx: ctx, baseline: baseline, candidate: candidate, options: o, changes: newTally(),
		touches: candidate.Touches(), report: &Report{Revisions: map[string]int{}, Candidate: candidate.Revision()},
	}
	if baseline != nil {
		r.report.Baseline = baseline.Revision()
		for rule, touched := range baseline.Touches() {
			r.touches[rule] = append(r.touches[rule], touched...)
		}
	}
	for _, log := range logs {
		if err := r.file(log); err != nil {
			return nil, err
		}
	}
	r.report.Changes = r.changes.sorted()
	return r.report, nil
}

// run is the state of one replay.
type run struct {
	ctx                 context.Context
	baseline, candidate *policy.Set
	options             Options
	touches             map[string][]policy.Touch // of both sets, by rule
	changes             *tally
	report              *Report
	log                 string // that is being read
	lineNumber          int    // in it
}

func (r *run) file(log Log) error {
	in, err := log.Open()
	if err != nil {
		return fmt.Errorf("cannot open the decision log: %w", err)
	}
	defer in.Close()
	r.log, r.lineNumber = log.Name, 0
	if err := r.read(bufio.NewReaderSize(in, 64<<10)); err != nil {
		return fmt.Errorf("cannot read the decision log %s: %w", log.Name, err)
	}
	return nil
}

func (r *run) read(in *bufio.Reader) error {
	var line []byte
	for {
		text, whole, err := readLine(in, line[:0])
		line = text
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		last := err != nil
		if last && len(line) == 0 && whole {
			return nil
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		r.report.Lines++
		r.lineNumber++
		if fault := r.line(line, whole); fault != "" {
			r.fault(fault, last)
		}
		if last {
			return nil
		}
	}
}

// readLine reads a line without its end into dst. whole is false when it is
// longer than MaxLine; the rest of it is passed over.
func readLine(in *bufio.Reader, dst []byte) (line []byte, whole bool, err error) {
	whole = true
	for {
		part, err := in.ReadSlice('\n')
		if len(dst)+len(part) > MaxLine {
			whole = false
		} else {
			dst = append(dst, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		return bytes.TrimRight(dst, "\r\n"), whole, err
	}
}

// line judges one line and says what is wrong with it, if anything is.
func (r *run) line(line []byte, whole bool) (fault string) {
	if !whole {
		return fmt.Sprintf("the line is longer than %d bytes", MaxLine)
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return ""
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(line, &head); err == nil && head.Type != "" && head.Type != policy.RecordDecision {
		r.report.Others++
		return ""
	}
	record, err := policy.ReadRecord(line)
	if err != nil {
		return err.Error()
	}
	r.report.Decisions++
	r.report.Revisions[record.Revision]++
	r.judge(record)
	return ""
}

// fault records a line that cannot be read. One that ends with the file, without
// a line break, was not written to its end.
func (r *run) fault(text string, last bool) {
	if last {
		r.report.Truncated++
		return
	}
	r.report.Broken++
	if len(r.report.Faults) < maxFaults {
		r.report.Faults = append(r.report.Faults, Fault{r.log, r.lineNumber, text})
	}
}

// judge compares the two outcomes of one request.
func (r *run) judge(record *policy.Record) {
	to := outcomeOf(r.candidate.Decide(r.ctx, record.AsInput(r.candidate)))
	from := recorded(record)
	if r.baseline != nil {
		counters := from.counters
		from = outcomeOf(r.baseline.Decide(r.ctx, record.AsInput(r.baseline)))
		if counters && from.allow {
			from.refusedByCounter = record.Rule
		}
	}
	c := comparison{run: r, from: from, to: to}
	c.compare()
	undecided := 0
	for _, change := range c.found {
		change.Tenant, change.Example, change.Count = record.Input.Tenant.ID, record.DecisionID, 1
		if change.What == Indeterminate {
			undecided++
		}
		r.changes.add(change)
	}
	switch {
	case len(c.found) == 0:
	case undecided == len(c.found):
		r.report.Undecided++
	default:
		r.report.Changed++
	}
}
