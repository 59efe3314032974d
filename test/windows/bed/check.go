//go:build e2e && windows

package bed

import (
	"slices"
	"strings"
	"testing"
)

// FilesOf returns the mounts of a container with the GPUs: each file that exists, of the
// first GPU that has it.
func FilesOf(gpus ...GPU) []Mapped {
	var mounts []Mapped
	taken := map[string]bool{}
	for _, g := range gpus {
		for _, m := range g.Mounts() {
			if path := strings.ToLower(m.ContainerPath); !taken[path] {
				taken[path] = true
				mounts = append(mounts, m)
			}
		}
	}
	return mounts
}

// MustHave fails the test unless container id was created with exactly those GPUs and
// their files.
func (n *Node) MustHave(t testing.TB, id string, gpus ...GPU) {
	t.Helper()
	n.MustHaveFiles(t, id, gpus, FilesOf(gpus...))
}

// MustHaveFiles fails the test unless container id was created with exactly those GPUs and
// those files.
func (n *Node) MustHaveFiles(t testing.TB, id string, gpus []GPU, files ...[]Mapped) {
	t.Helper()
	document := n.Document(t, id)
	var got, want []string
	for _, d := range document.AssignedDevices {
		if got = append(got, d.LocationPath); d.LocationPath != "" && d.Type != "DeviceInstance" {
			t.Errorf("device %s of %s is assigned as %q, want DeviceInstance", d.LocationPath, id, d.Type)
		}
	}
	for _, g := range gpus {
		want = append(want, g.LocationPath)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("AssignedDevices of %s are %q, want %q", id, got, want)
	}
	mustMap(t, id, document, slices.Concat(files...))
}

// DisplayClass is the device class that stands for all GPUs.
const DisplayClass = "5B45201D-F2F2-4F3B-85BB-30FF1F953599"

// MustHaveClass fails the test unless container id has the class of all GPUs, no other
// device, and those files.
func (n *Node) MustHaveClass(t testing.TB, id string, files ...[]Mapped) {
	t.Helper()
	document := n.Document(t, id)
	if d := document.AssignedDevices; len(d) != 1 || d[0].InterfaceClassGUID != DisplayClass || d[0].LocationPath != "" {
		t.Errorf("AssignedDevices of %s are %+v, want the class only", id, d)
	}
	mustMap(t, id, document, slices.Concat(files...))
}

func mustMap(t testing.TB, id string, document Document, want []Mapped) {
	t.Helper()
	got := slices.Clone(document.MappedDirectories)
	for _, mounts := range [][]Mapped{got, want} {
		slices.SortFunc(mounts, func(a, b Mapped) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	}
	same := func(a, b Mapped) bool {
		return strings.EqualFold(a.HostPath, b.HostPath) && strings.EqualFold(a.ContainerPath, b.ContainerPath) && a.ReadOnly == b.ReadOnly
	}
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("MappedDirectories of %s are\n%+v\nwant\n%+v", id, got, want)
	}
}

// MustRefuse fails the test unless err, of ctr or the client, is one line of the shim
// that has parts in it, and the container was not created and has left nothing.
func (n *Node) MustRefuse(t testing.TB, id string, err error, parts ...string) {
	t.Helper()
	if err != nil && (strings.Count(err.Error(), "directx-nri: ") != 1 || strings.Contains(strings.TrimSpace(err.Error()), "\n")) {
		t.Errorf("the error is not one line of the shim: %q", err)
	}
	n.MustNotStart(t, id, err, parts...)
}

// MustNotStart fails the test unless the error has parts and the container was not
// created and has left nothing.
func (n *Node) MustNotStart(t testing.TB, id string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("container %s started, want it refused", id)
		return
	}
	t.Logf("refused: %v", err)
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("container %s: the error does not contain %q: %v", id, part, err)
		}
	}
	if created := n.Created(t, id); n.Doubled && created != 0 {
		t.Errorf("container %s was created %d times", id, created)
	}
	n.MustLeaveNothing(t, id)
}
