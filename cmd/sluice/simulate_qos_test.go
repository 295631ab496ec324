package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// queuedReport is what the JSON of a report with a queue is read for here.
type queuedReport struct {
	Workload   string
	Requests   int
	Strategies []struct{ Classes, Tenants []queuedFigures }
}

type queuedFigures struct {
	Class, Tenant    string
	Requests, Served int
	Returned         int
	Refused          map[string]int
	Met              float64               `json:"target_met"`
	TTFT             struct{ Max float64 } `json:"ttft_ms"`
}

func queuedSimulation(t *testing.T, args ...string) (queuedReport, []queuedFigures, []queuedFigures) {
	t.Helper()
	var r queuedReport
	args = append([]string{"--workers", "1", "--workload", "independent", "--output", "64", "--format", "json"}, args...)
	if err := json.Unmarshal([]byte(runSimulation(t, args...)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Strategies) != 1 {
		t.Fatalf("%d strategies ran, want the live one alone", len(r.Strategies))
	}
	return r, r.Strategies[0].Classes, r.Strategies[0].Tenants
}

// TestSimulateTenants: each tenant is in the report by its class's name and number, with
// so many times the requests as its rate is.
func TestSimulateTenants(t *testing.T) {
	_, classes, tenants := queuedSimulation(t, "--tenants", "interactive:2x0.5,batch:1x2,interactive:1x1", "--requests", "200")
	var names []string
	came := make(map[string]int)
	for _, f := range tenants {
		names = append(names, f.Tenant)
		came[f.Tenant] = f.Requests
	}
	if want := []string{"interactive-1", "interactive-2", "interactive-3", "batch"}; !slices.Equal(names, want) {
		t.Errorf("the tenants are %q, want %q", names, want)
	}
	if came["batch"] < came["interactive-1"]*2 || came["interactive-3"] <= came["interactive-1"] {
		t.Errorf("requests do not come by the rates: %v", came)
	}
	if len(classes) != 2 || classes[0].Class != "interactive" || classes[1].Class != "batch" {
		t.Errorf("the classes are %+v", classes)
	}
}

// TestSimulateOverload: --overload scales the rates to the measured capacity, refused
// requests come again as often as --returns says, and at once with !.
func TestSimulateOverload(t *testing.T) {
	load := []string{"--requests", "400", "--overload", "4"}
	sums := func(args ...string) (refused, returned int) {
		r, classes, _ := queuedSimulation(t, append(slices.Clone(load), args...)...)
		if !strings.Contains(r.Workload, "at 4 times the capacity of ") {
			t.Errorf("the report is of %q", r.Workload)
		}
		for _, c := range classes {
			for _, n := range c.Refused {
				refused += n
			}
			returned += c.Returned
		}
		return refused, returned
	}
	never, none := sums("--tenants", "standard:4x1", "--returns", "0")
	obeys, told := sums("--tenants", "standard:4x1", "--returns", "1")
	hurries, early := sums("--tenants", "!standard:4x1", "--returns", "5")
	if never == 0 || none != 0 {
		t.Errorf("without returns %d were refused, %d came again", never, none)
	}
	if obeys == 0 || told == 0 {
		t.Errorf("with one return %d were refused, %d came again", obeys, told)
	}
	if early <= told || hurries <= obeys {
		t.Errorf("those that hurry came again %d times, of the others %d; %d and %d were refused", early, told, hurries, obeys)
	}
}

// TestSimulateQoSFile: the classes are those of the file.
func TestSimulateQoSFile(t *testing.T) {
	_, classes, _ := queuedSimulation(t, "--qos", "testdata/config/full.yaml", "--tenants", "slow:2x1", "--requests", "20")
	if len(classes) != 1 || classes[0].Class != "slow" || classes[0].Served != classes[0].Requests {
		t.Errorf("the classes are %+v", classes)
	}
	_, alone, tenants := queuedSimulation(t, "--qos", "testdata/config/full.yaml", "--requests", "20")
	if len(alone) != 1 || alone[0].Requests != 20 || len(tenants) != 0 {
		t.Errorf("without tenants the classes are %+v, the tenants %+v", alone, tenants)
	}
}
