package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
)

const (
	firstGPU  = `PCI\VEN_10DE&DEV_1EB8\1`
	secondGPU = "NPU"
	displays  = "directx.microsoft.com/display"
)

// entry returns a record of a replica of firstGPU that container main of the pod
// default/NAME holds. Without a name it is not bound.
func entry(name, uid string, replica string) allocation.Entry {
	created := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	e := allocation.Entry{Record: allocation.Record{
		ID: allocation.ID(strings.Repeat("ab", 15) + "0" + replica), Resource: displays, CreatedAt: created,
		Replicas: []allocation.Replica{{ID: allocation.GPUKey(firstGPU) + "-" + replica, InstanceID: firstGPU}},
	}}
	if uid != "" {
		e.Holder = &allocation.Holder{PodUID: uid, Container: "main", PodNamespace: "default", PodName: name}
		e.BoundAt = created.Add(time.Minute)
	}
	return e
}

func TestAllocationsOutput(t *testing.T) {
	t.Parallel()
	devices := []discovery.Device{{InstanceID: strings.ToLower(firstGPU), Description: "NVIDIA Tesla T4", LocationPath: "PCIROOT(0)#PCI(1B00)"}}
	both := entry("b", "uid-b", "2")
	both.Replicas = append(both.Replicas, allocation.Replica{ID: allocation.GPUKey(secondGPU) + "-0", InstanceID: secondGPU})
	entries := []allocation.Entry{entry("c", "uid-c", "10"), entry("a", "uid-a", "0"), both, entry("", "", "1")}
	reports := newAllocationReports(entries, devices)
	now := entries[0].BoundAt.Add(3 * time.Hour)
	for _, output := range []string{cli.Table, cli.Wide, cli.JSON} {
		list := allocationList(now)
		var stdout bytes.Buffer
		testutil.NoError(t, list.Print(&stdout, cli.Output{Format: output}, reports))
		golden(t, "allocations-"+output, stdout.String())
	}
}

// writeAllocations returns a state directory with three records: those of the pods default/a and
// default/b, and one that is not bound.
func writeAllocations(t *testing.T) (state string) {
	t.Helper()
	b := newSpecNode(t)
	for _, pod := range []string{"a", "b"} {
		holder := allocation.Holder{PodUID: "uid-" + pod, Container: "main", PodNamespace: "default", PodName: pod}
		allocationtest.Bind(t, paths.Allocations(b.state), b.record(t, "GPU-"+pod), holder)
	}
	b.record(t, "GPU-c")
	return b.state
}

// runAllocations runs the command on a node without GPUs.
func runAllocations(t *testing.T, state string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	none := filepath.Join(t.TempDir(), "none")
	return runCommand(t.Context(), t, "", append([]string{"allocations", "--state-dir", state, "--inventory", none}, args...)...)
}

func TestAllocationsOfUnknownGPUs(t *testing.T) {
	t.Parallel()
	stdout, stderr, err := runAllocations(t, writeAllocations(t), "-o", "json")
	var reports []allocationReport
	if err := errors.Join(err, json.Unmarshal([]byte(stdout), &reports)); err != nil || len(reports) != 3 {
		t.Fatalf("%v: %s", err, stdout)
	}
	if r := reports[0]; r.Pod != "a" || r.InstanceID != "GPU-a" || r.LocationPath != "" || r.Since == nil {
		t.Errorf("the pod and GPU of a record that is bound: %+v", r)
	}
	if r := reports[2]; r.Pod != "" || r.Since != nil || r.AllocatedAt.IsZero() {
		t.Errorf("%+v", r)
	}
	if want := "shown without their names"; !strings.Contains(stderr, want) {
		t.Errorf("no %q in %s", want, stderr)
	}
}

func TestNoAllocations(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{"json": "[]\n", "table": ""} {
		state := t.TempDir()
		stdout, stderr, err := runAllocations(t, state, "-o", output)
		if err != nil || stdout != want || stderr != "There are no allocation records in "+paths.Allocations(state)+".\n" {
			t.Errorf("%s: %v, %q, %q", output, err, stdout, stderr)
		}
	}
}

func TestAllocationsOfNoDirectory(t *testing.T) {
	t.Parallel()
	_, _, err := runAllocations(t, filepath.Join(t.TempDir(), "typo"))
	testutil.CheckError(t, "no state directory", err, "typo: ")
	state := t.TempDir()
	testutil.WriteFile(t, paths.Allocations(state), "", 0o600)
	_, _, err = runAllocations(t, state)
	testutil.CheckError(t, "a file", err, paths.Allocations(state)+": ")
}

func TestAllocationsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	state := writeAllocations(t)
	for name, content := range map[string]string{strings.Repeat("ab", 16) + ".json": "{", "README": "hello"} {
		testutil.WriteFile(t, filepath.Join(paths.Allocations(state), name), content, 0o600)
	}
	stdout, stderr, err := runAllocations(t, state)
	testutil.CheckError(t, "allocations", err, "1 allocation record(s) could not be read")
	if strings.Count(stdout, "\n") != 4 || strings.Count(stderr, "problem: ") != 1 {
		t.Errorf("%s%s", stdout, stderr)
	}
}
