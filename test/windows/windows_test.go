//go:build e2e && linux

// Package windows holds the suite for Windows nodes: the runtime shim between
// the real containerd.exe and the real containerd-shim-runhcs-v1.exe, under
// Wine, as package bed runs them. What HCS is told is the evidence. And
// discovery, on devices that are made through Windows' own APIs.
package windows

import (
	"os"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// What TestMain found: the prefix, or why the tests cannot run.
var (
	wine *bed.Wine
	skip string
)

func TestMain(m *testing.M) { os.Exit(bed.Main(m, &wine, &skip)) }

// start returns a node with two GPUs, for the test and those within it.
func start(t *testing.T, options bed.Options) *bed.Node {
	t.Helper()
	if skip != "" {
		t.Skip(skip)
	}
	if options.Inventory == nil {
		options.Inventory = bed.NewInventory(options.Name)
	}
	return bed.StartNode(t, wine, options)
}

// node is a node and the GPUs that its inventory describes.
type node struct {
	*bed.Node
	gpus []bed.GPU
}

// TestNode runs what can share a node, side by side: containerd 1.7.35 and the
// runhcs that it names. The names of its parts are what must hold.
func TestNode(t *testing.T) {
	t.Parallel()
	inventory := bed.NewInventory("main")
	n := node{start(t, bed.Options{Name: "main", Inventory: inventory}), inventory.GPUs}
	n.ImportImage(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, node)
	}{
		{"1 a pod's container", testPods},
		{"2 a standalone container", testStandalone},
		{"3 what cannot be honoured does not start", testRefused},
		{"4 what is not ours", testUntouched},
		{"5 a container by hand", testByHand},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t, n)
		})
	}
}

// TestVersions runs the main chain with other releases of both sides.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, options := range []bed.Options{
		{Name: "containerd2", Containerd2: true},
		{Name: "hcsshim", NewHcsshim: true},
		{Name: "newest", Containerd2: true, NewHcsshim: true},
	} {
		t.Run(options.Name, func(t *testing.T) {
			t.Parallel()
			options.Inventory = bed.NewInventory(options.Name)
			n := node{start(t, options), options.Inventory.GPUs}
			testChain(t, n)
		})
	}
}

// only returns the GPUs' mounts as HCS is to see them: every file that exists,
// once for each place, of the first GPU that has it.
func only(gpus ...bed.GPU) []bed.Mapped {
	var mounts []bed.Mapped
	taken := map[string]bool{}
	for _, g := range gpus {
		for _, m := range g.Mounts() {
			if place := strings.ToLower(m.ContainerPath); !taken[place] {
				taken[place] = true
				mounts = append(mounts, m)
			}
		}
	}
	bed.SortMapped(mounts)
	return mounts
}

// mustHave fails the test unless container id was created with exactly those
// GPUs and their files.
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
	mustMap(t, id, document, only(gpus...))
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

// mustEqualPlain fails the test unless container id came to HCS, and
// config.json to the real shim, as container plain did without us.
func (n node) mustEqualPlain(t *testing.T, id, plain string) {
	t.Helper()
	if got, want := n.Document(t, id).Neutral(id), n.Document(t, plain).Neutral(plain); got != want {
		t.Errorf("the HCS document is\n%s\nand without us\n%s", got, want)
	}
	n.mustEqualConfig(t, id, plain)
}

func (n node) mustEqualConfig(t *testing.T, id, plain string) {
	t.Helper()
	n.mustEqualConfigs(t, id, id, plain, plain)
}

// mustEqualConfigs is mustEqualConfig for containers of the pods pod and
// plainPod, whose names differ as well.
func (n node) mustEqualConfigs(t *testing.T, id, pod, plain, plainPod string) {
	t.Helper()
	got := strings.ReplaceAll(n.Config(t, id), pod, "POD")
	want := strings.ReplaceAll(n.Config(t, plain), plainPod, "POD")
	if got != want {
		t.Errorf("config.json is\n%s\nand without us\n%s", got, want)
	}
}

// mustRefuse fails the test unless err, of ctr or the client, is our line, has
// parts in it, and HCS was never asked for the container.
func (n node) mustRefuse(t *testing.T, id string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("container %s started, want it refused", id)
	}
	text := err.Error()
	t.Logf("refused: %s", text)
	if strings.Count(text, "directx-nri: ") != 1 || strings.Contains(strings.TrimSpace(text), "\n") {
		t.Errorf("the error is not one line of ours: %q", text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("the error does not say %q: %s", part, text)
		}
	}
	if created := n.Created(t, id); created != 0 {
		t.Errorf("HCS was asked %d times for container %s, want never", created, id)
	}
}
