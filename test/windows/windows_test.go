//go:build e2e && linux

// Package windows has the suite for Windows nodes: the runtime shim between the real
// containerd.exe and the real containerd-shim-runhcs-v1.exe under Wine, as package bed
// runs them. The tests check the documents that the Host Compute Service gets, and
// discovery through Windows' own APIs.
package windows

import (
	"os"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// The prefix, or the reason why the tests cannot run.
var (
	wine *bed.Wine
	skip string
)

func TestMain(m *testing.M) { os.Exit(bed.Main(m, &wine, &skip)) }

// node is a node and the GPUs of its inventory.
type node struct {
	*bed.Node
	gpus []bed.GPU
}

// start returns a node, by default with two GPUs, for the test and its subtests.
func start(t *testing.T, options bed.Options) node {
	t.Helper()
	if skip != "" {
		t.Skip(skip)
	}
	if options.Inventory == nil {
		options.Inventory = bed.NewInventory(options.Name)
	}
	return node{bed.StartNode(t, wine, options), options.Inventory.GPUs}
}

// name returns an ID that no other node of the prefix has: they share one HCS.
func (n node) name(suffix string) string { return n.Name() + "-" + suffix }

type part struct {
	name string
	run  func(*testing.T)
}

// TestNode has the tests that share a node with containerd 1.7.35 and its version of
// runhcs.
func TestNode(t *testing.T) {
	t.Parallel()
	n := start(t, bed.Options{Name: "main"})
	n.ImportImage(t)
	for _, part := range []part{
		{"the main chain", n.testChain},
		{"containers of pods", n.testPods},
		{"standalone containers", n.testStandalone},
		{"refused containers", n.testRefused},
		{"containers without a request", n.testUntouched},
		{"flags of dxctl", n.testFlags},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t)
		})
	}
}

// TestVersions runs the main chain with other releases.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, options := range []bed.Options{
		{Name: "containerd2", Containerd2: true},
		{Name: "hcsshim", NewHcsshim: true},
		{Name: "newest", Containerd2: true, NewHcsshim: true},
	} {
		t.Run(options.Name, func(t *testing.T) {
			t.Parallel()
			start(t, options).testChain(t)
		})
	}
}

// visible returns the spec of a standalone container that requests GPUs.
func (n node) visible(t *testing.T, id, request string) []byte {
	t.Helper()
	spec := n.Standalone(t, id)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES="+request)
	return bed.JSON(t, spec)
}

// filesOf returns the mounts of a container with the GPUs: each file that exists, of the
// first GPU that has it.
func filesOf(gpus ...bed.GPU) []bed.Mapped {
	var mounts []bed.Mapped
	taken := map[string]bool{}
	for _, g := range gpus {
		for _, m := range g.Mounts() {
			if path := strings.ToLower(m.ContainerPath); !taken[path] {
				taken[path] = true
				mounts = append(mounts, m)
			}
		}
	}
	bed.SortMapped(mounts)
	return mounts
}

// mustHave fails the test unless container id was created with exactly those GPUs and
// their files.
func (n node) mustHave(t *testing.T, id string, gpus ...bed.GPU) {
	t.Helper()
	document := n.Document(t, id)
	var want []string
	for _, g := range gpus {
		want = append(want, g.Location)
	}
	got := document.Locations()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("AssignedDevices of %s are %q, want %q", id, got, want)
	}
	for _, d := range document.AssignedDevices {
		if d.LocationPath != "" && d.Type != "DeviceInstance" {
			t.Errorf("device %s of %s is assigned as %q, want DeviceInstance", d.LocationPath, id, d.Type)
		}
	}
	mustMap(t, id, document, filesOf(gpus...))
}

// displayClass is the device class that stands for all GPUs.
const displayClass = "5B45201D-F2F2-4F3B-85BB-30FF1F953599"

// mustHaveClass fails the test unless container id has the class of all GPUs, and no
// other device.
func (n node) mustHaveClass(t *testing.T, id string) bed.Document {
	t.Helper()
	document := n.Document(t, id)
	if d := document.AssignedDevices; len(d) != 1 || d[0].InterfaceClassGUID != displayClass || d[0].LocationPath != "" {
		t.Errorf("AssignedDevices of %s are %+v, want the class only", id, d)
	}
	return document
}

func mustMap(t *testing.T, id string, document bed.Document, want []bed.Mapped) {
	t.Helper()
	got := slices.Clone(document.MappedDirectories)
	bed.SortMapped(got)
	same := func(a, b bed.Mapped) bool {
		return strings.EqualFold(a.HostPath, b.HostPath) && strings.EqualFold(a.ContainerPath, b.ContainerPath) && a.ReadOnly == b.ReadOnly
	}
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("MappedDirectories of %s are\n%+v\nwant\n%+v", id, got, want)
	}
}

// mustEqualPlain fails the test unless HCS got the same document for container id as for
// container plain, which was started without the shim, and the real shim the same
// config.json.
func (n node) mustEqualPlain(t *testing.T, id, plain string) {
	t.Helper()
	if got, want := n.Document(t, id).Neutral(id), n.Document(t, plain).Neutral(plain); got != want {
		t.Errorf("the HCS document is\n%s\nand without the shim\n%s", got, want)
	}
	n.mustEqualConfigs(t, id, id, plain, plain)
}

// mustEqualConfigs compares config.json of containers of the pods pod and plainPod.
func (n node) mustEqualConfigs(t *testing.T, id, pod, plain, plainPod string) {
	t.Helper()
	got := strings.ReplaceAll(n.Config(t, id), pod, "POD")
	want := strings.ReplaceAll(n.Config(t, plain), plainPod, "POD")
	if got != want {
		t.Errorf("config.json is\n%s\nand without the shim\n%s", got, want)
	}
}

// mustRefuse fails the test unless err, of ctr or the client, is one line of the shim
// that has parts in it, and the container was not created.
func (n node) mustRefuse(t *testing.T, id string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("container %s started, want it refused", id)
	}
	text := err.Error()
	t.Logf("refused: %s", text)
	if strings.Count(text, "directx-nri: ") != 1 || strings.Contains(strings.TrimSpace(text), "\n") {
		t.Errorf("the error is not one line of the shim: %q", text)
	}
	n.mustNotStart(t, id, text, parts...)
}

// mustNotStart fails the test unless the error has parts and the container was not
// created.
func (n node) mustNotStart(t *testing.T, id, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("container %s: the error does not contain %q: %s", id, part, text)
		}
	}
	if created := n.Created(t, id); created != 0 {
		t.Errorf("container %s was created %d times", id, created)
	}
}

// mustLeaveNothing waits until container id has left no process, bundle or compute system.
func (n node) mustLeaveNothing(t *testing.T, id string) {
	t.Helper()
	bed.Eventually(t, "nothing is left of "+id, func() error { return n.Left(id) })
}
