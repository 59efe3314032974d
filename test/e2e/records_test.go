//go:build e2e && linux

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"directx-nri/internal/allocation"
	"directx-nri/test/bed"
)

// recordFile returns the file of the record of a running container.
func (s *suite) recordFile(t *testing.T, pod string) string {
	t.Helper()
	token := s.Look(t, pod, "main").Tokens[displayToken]
	if token == "" {
		t.Fatalf("container main of pod %s has no token", pod)
	}
	return filepath.Join(s.StateDir, "allocations", recordName(token))
}

// recordName returns the name of the file that a token's record is in.
func recordName(token string) string { return string(allocation.Token(token).ID()) + ".json" }

// testRecords tests the records when their writer crashes, and when they are damaged.
func (s *suite) testRecords(t *testing.T) {
	s.run(t, "the advertiser is killed in Allocate", s.testKillsInAllocate)
	s.run(t, "a damaged record starts nothing, and the error names the file", s.testDamage)
}

// testKillsInAllocate kills the advertiser under a stream of Allocate calls.
// What it answered must be recorded, whole and for that device.
func (s *suite) testKillsInAllocate(t *testing.T) {
	plugin := s.DevicePlugin(t)
	device := s.inventory.GPUs[1].Replica(3)
	dir := filepath.Join(s.StateDir, "allocations")
	answered := 0
	const kills = 25
	for i := range kills {
		type result struct {
			last  string // the last token that was given out
			count int
			err   error
		}
		results := make(chan result, 1)
		started := make(chan struct{})
		go func() {
			var r result
			for r.err == nil {
				var answer bed.Answer
				if answer, r.err = plugin.Allocate(device); r.err == nil {
					r.last = answer.Env[displayToken]
					if r.count++; r.count == 1 {
						close(started)
					}
				}
			}
			if r.count == 0 {
				close(started)
			}
			results <- r
		}()
		<-started
		time.Sleep(time.Duration(i*i*50) * time.Microsecond) // The moment is what varies here.
		s.Advertiser.Kill(t)
		r := <-results
		if r.last == "" {
			t.Fatalf("Allocate does not work: %v", r.err)
		}
		answered += r.count
		record, err := os.ReadFile(filepath.Join(dir, recordName(r.last)))
		if err != nil {
			t.Fatalf("the token of an answer has no record: %v", err)
		}
		if quoted, _ := json.Marshal(device); !bytes.Contains(record, quoted) {
			t.Errorf("the record of an answer for %s does not name it: %s", device, record)
		}
		s.mustReadRecords(t)
		s.Advertiser.Start(t)
		s.WaitReady(t)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills under %d answered calls left %d files", kills, answered, len(entries))
	if answered > 400 && len(entries) > answered/2 {
		t.Errorf("%d files are left of %d allocations that no container came for: they must be bounded", len(entries), answered)
	}
	pod := s.Apply(t, bed.GPUPod("after", 1))
	s.WaitRunning(t, pod)
	s.MustHave(t, pod, "main", s.AssignedGPUs(t, pod, "main")...)
}

// mustReadRecords fails the test when a record's file is not whole.
func (s *suite) mustReadRecords(t *testing.T) {
	t.Helper()
	dir := filepath.Join(s.StateDir, "allocations")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	records := 0
	for _, entry := range entries {
		if suffix := filepath.Ext(entry.Name()); suffix != ".json" && suffix != ".bound" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // It ended meanwhile.
		}
		if err != nil || !json.Valid(data) {
			t.Errorf("record file %s is not whole: %q, %v", entry.Name(), data, err)
		}
		records++
	}
	if records == 0 {
		t.Error("there is no record, though a GPU was allocated")
	}
}

// testDamage damages the records of running containers, each in another way,
// and ends the containers.
func (s *suite) testDamage(t *testing.T) {
	type damaged struct {
		name, pod, file string
		content         []byte
		view            bed.View
		mark            bed.Mark
	}
	var all []*damaged
	for _, name := range []string{"torn", "changed", "removed", "binding-torn"} {
		d := &damaged{name: name, pod: s.Apply(t, bed.GPUPod(name, 1))}
		s.WaitRunning(t, d.pod)
		d.view = s.Look(t, d.pod, "main")
		d.file = s.recordFile(t, d.pod)
		if name == "binding-torn" {
			d.file = strings.TrimSuffix(d.file, ".json") + ".bound"
		}
		var err error
		if d.content, err = os.ReadFile(d.file); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	write := func(path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range all {
		switch d.name {
		case "torn", "binding-torn":
			write(d.file, d.content[:len(d.content)/2])
		case "changed": // a wrong device that is well-formed
			gpu := s.inventory.GPUs[d.view.GPUs[0]]
			wrong := s.inventory.GPUs[1-d.view.GPUs[0]]
			quoted := func(g bed.GPU) []byte { return []byte(strings.Trim(fmt.Sprintf("%q", g.InstanceID()), `"`)) }
			changed := bytes.ReplaceAll(d.content, quoted(gpu), quoted(wrong))
			if bytes.Equal(changed, d.content) {
				t.Fatalf("the record does not name its GPU %s: %s", gpu.InstanceID(), d.content)
			}
			write(d.file, changed)
		case "removed":
			if err := os.Remove(d.file); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, d := range all {
		d.mark = s.Kubelet.Mark()
		s.KillContainer(t, d.view)
	}
	for _, d := range all {
		mustContain(t, "the event of a container whose record is "+d.name, s.WaitNotStarted(t, d.pod, "main", d.mark), d.file)
		s.MustNotRun(t, d.pod)
	}
	// Both daemons start with damaged records.
	s.Advertiser.Stop(t)
	s.Plugin.Stop(t)
	s.Advertiser.Start(t)
	s.Plugin.Start(t)
	s.WaitReady(t)
	for _, d := range all {
		write(d.file, d.content)
	}
	for _, d := range all {
		s.Nudge(t, d.pod)
		s.WaitRunning(t, d.pod)
		s.MustHave(t, d.pod, "main", d.view.GPUs...)
	}
}

// TestFullDisk fills the file system of the state directory.
func TestFullDisk(t *testing.T) {
	s := &suite{inventory: bed.NewInventory(2, 0)}
	s.Node = bed.Start(t, bed.Options{Replicas: 4, Inventory: s.inventory, StateDirSize: 256 << 10})
	s.run(t, "7 a full disk fails pods with a reason, and hurts no other", func(t *testing.T) {
		running := s.Apply(t, bed.GPUPod("running", 1))
		s.WaitRunning(t, running)
		// Its allocation is recorded now, and bound when the disk is full.
		s.Plugin.Stop(t)
		mark := s.Kubelet.Mark()
		unbound := s.Apply(t, bed.GPUPod("unbound", 1))
		s.WaitNotStarted(t, unbound, "main", mark)

		filler := filepath.Join(s.StateDir, "filler")
		if err := bed.Fill(filler); err != nil {
			t.Fatal(err)
		}
		mark = s.Kubelet.Mark()
		s.Plugin.Start(t)
		s.WaitPlugin(t)
		dir := filepath.Join(s.StateDir, "allocations")
		bed.Eventually(t, 60*time.Second, "an event says why the container cannot be bound", func() error {
			for _, event := range s.EventsSince(unbound, mark) {
				if strings.Contains(event.Message, dir) && strings.Contains(event.Message, "no space left on device") {
					t.Logf("the event of a container that cannot be bound: %s", event.Message)
					return nil
				}
			}
			return fmt.Errorf("the events are %v", s.EventsSince(unbound, mark))
		})
		refused := s.Apply(t, bed.GPUPod("refused", 1))
		mustContain(t, "the refusal of a pod that cannot be recorded", s.WaitRefused(t, refused), dir, "no space left on device")
		s.crash(t, running)
		s.Advertiser.Stop(t)
		s.Advertiser.Start(t)
		s.WaitReady(t)
		s.crash(t, running)
		s.mustReadRecords(t)

		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		s.Nudge(t, unbound)
		s.WaitRunning(t, unbound)
		s.MustHave(t, unbound, "main", s.AssignedGPUs(t, unbound, "main")...)
		pod := s.Apply(t, bed.GPUPod("after", 1))
		s.WaitRunning(t, pod)
		s.MustHave(t, pod, "main", s.AssignedGPUs(t, pod, "main")...)
	})
}
