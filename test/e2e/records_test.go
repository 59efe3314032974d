//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// records returns the records. It fails the test when there is none, or one is not whole.
func (s *suite) records(t *testing.T) []allocation.Entry {
	t.Helper()
	entries, problems, err := allocation.OpenStore(paths.Allocations(s.StateDir)).List(t.Context())
	if err != nil || len(problems) > 0 || len(entries) == 0 {
		t.Fatalf("%d records, %v, %v", len(entries), problems, err)
	}
	return entries
}

// testDamage damages the records of running containers, each in another way,
// and ends the containers.
func (s *suite) testDamage(t *testing.T) {
	type damaged struct {
		name, suffix       string
		damage             func(content string) string // "" removes the file
		pod, file, content string
		view               bed.View
		mark               bed.Mark
	}
	half := func(content string) string { return content[:len(content)/2] }
	all := []*damaged{
		{name: "torn", suffix: ".json", damage: half},
		{name: "misnamed", suffix: ".json", damage: strings.NewReplacer(`{"id":"`, `{"id":"0`).Replace},
		{name: "removed", suffix: ".json", damage: func(string) string { return "" }},
		{name: "binding-torn", suffix: ".bound", damage: half},
	}
	for _, d := range all {
		d.pod = s.RunPod(t, bed.GPUPod(d.name, 1))
		d.view = s.Look(t, d.pod, "main")
		d.file = filepath.Join(s.StateDir, "allocations", d.view.Allocations[displayKey]+d.suffix)
		d.content = string(bed.ReadFile(t, d.file))
	}
	for _, d := range all {
		text := d.damage(d.content)
		if text == d.content {
			t.Fatalf("%s is not changed: %s", d.file, text)
		}
		bed.WriteFile(t, d.file, text, 0o600)
		if text == "" {
			testutil.NoError(t, os.Remove(d.file))
		}
	}
	for _, d := range all {
		d.mark = s.Kubelet.Mark()
		s.KillContainer(t, d.view)
	}
	for _, d := range all {
		bed.MustContain(t, "the event of a container whose record is "+d.name, s.WaitNotStarted(t, d.pod, "main", d.mark), d.file)
		s.MustNotRun(t, d.pod)
	}
	// Both daemons start with damaged records.
	s.RestartDaemons(t)
	for _, d := range all {
		bed.WriteFile(t, d.file, d.content, 0o600)
	}
	for _, d := range all {
		s.SyncPods(t, d.pod)
		s.WaitRunning(t, d.pod)
		s.MustHave(t, d.pod, "main", d.view.GPUs...)
	}
}

// TestFullDisk fills the file system of the state directory.
func TestFullDisk(t *testing.T) {
	s := start(t, bed.Options{Replicas: 4, Inventory: bed.NewInventory(2, 0), StateDirSize: 256 << 10})
	s.Part(t, "7 a full disk fails pods with a reason, and hurts no other", func(t *testing.T) {
		running := s.RunPod(t, bed.GPUPod("running", 1))
		// Its allocation is recorded now, and bound when the disk is full.
		s.Plugin.Stop(t)
		mark := s.Kubelet.Mark()
		unbound := s.Apply(t, bed.GPUPod("unbound", 1))
		s.WaitNotStarted(t, unbound, "main", mark)

		filler := filepath.Join(s.StateDir, "filler")
		testutil.NoError(t, bed.Fill(filler))
		mark = s.Kubelet.Mark()
		s.Plugin.Start(t)
		s.WaitPlugin(t)
		dir := filepath.Join(s.StateDir, "allocations")
		bed.Eventually(t, 60*time.Second, "an event has the reason why the container cannot be bound", func() error {
			for _, event := range s.EventsSince(unbound, mark) {
				if strings.Contains(event.Message, dir) && strings.Contains(event.Message, "no space left on device") {
					t.Logf("the event of a container that cannot be bound: %s", event.Message)
					return nil
				}
			}
			return fmt.Errorf("the events are %v", s.EventsSince(unbound, mark))
		})
		refused := s.Apply(t, bed.GPUPod("refused", 1))
		bed.MustContain(t, "the refusal of a pod that cannot be recorded", s.WaitRefused(t, refused), dir, "no space left on device")
		s.crash(t, running)
		s.Advertiser.Stop(t)
		s.Advertiser.Start(t)
		s.WaitReady(t)
		s.crash(t, running)
		s.records(t)

		testutil.NoError(t, os.Remove(filler))
		s.SyncPods(t, unbound)
		s.WaitServed(t, unbound)
		s.RunPod(t, bed.GPUPod("after", 1))
	})
}
