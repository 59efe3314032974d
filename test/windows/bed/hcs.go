//go:build e2e && windows

package bed

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Call is a call of the Host Compute Service.
type Call struct {
	Name string
	// Text is its document, JSON in most cases.
	Text string
}

// Calls returns the calls for the compute system id, in order.
func (n *Node) Calls(t testing.TB, id string) []Call {
	t.Helper()
	var calls []Call
	for line := range strings.Lines(string(ReadFile(t, `C:\hcs.log`))) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(fields) == 3 && fields[1] == id {
			calls = append(calls, Call{Name: fields[0], Text: fields[2]})
		}
	}
	return calls
}

// Created returns how often the container id was created, on Windows itself how often the
// real shim was started for it.
func (n *Node) Created(t testing.TB, id string) (times int) {
	t.Helper()
	for _, c := range n.Calls(t, id) {
		if c.Name == "HcsCreateComputeSystem" {
			times++
		}
	}
	if !n.Doubled {
		for _, c := range n.ShimCalls(t, id) {
			if slices.Contains(c.Args, "start") {
				times++
			}
		}
	}
	return times
}

// Document is the part of HCS's document that describes a container.
type Document struct {
	AssignedDevices   []Assigned
	MappedDirectories []Mapped

	text string
}

// Assigned is a device of the host in a container.
type Assigned struct {
	Type               string
	LocationPath       string
	InterfaceClassGUID string `json:"InterfaceClassGuid"`
}

// volume is the prefix of the paths that runhcs resolves on the host.
var volume = regexp.MustCompile(`^\\\\\?\\Volume\{[^}]*\}\\`)

// Mapped is a directory or file of the host in a container. The case of the paths does
// not matter.
type Mapped struct {
	HostPath      string
	ContainerPath string
	ReadOnly      bool
}

// Document returns the document of the container id, which must have been created once. On
// Windows itself, it is what the real shim was started with.
func (n *Node) Document(t testing.TB, id string) Document {
	t.Helper()
	if times := n.Created(t, id); times != 1 {
		t.Fatalf("container %s was created %d times, want once", id, times)
	}
	if !n.Doubled {
		return n.requested(t, id)
	}
	var document struct{ Container Document }
	for _, c := range n.Calls(t, id) {
		if c.Name != "HcsCreateComputeSystem" {
			continue
		}
		document = Decode[struct{ Container Document }](t, c.Text)
		document.Container.text = c.Text
	}
	for i, m := range document.Container.MappedDirectories {
		document.Container.MappedDirectories[i].HostPath = volume.ReplaceAllString(m.HostPath, `C:\`)
	}
	return document.Container
}

// requested returns the document that config.json requests.
func (n *Node) requested(t testing.TB, id string) Document {
	t.Helper()
	document, spec := Document{text: n.Config(t, id)}, n.spec(t, id)
	for _, d := range spec.Windows.Devices {
		assigned := Assigned{InterfaceClassGUID: d.ID}
		if d.IDType == "vpci-location-path" {
			assigned = Assigned{Type: "DeviceInstance", LocationPath: d.ID}
		}
		document.AssignedDevices = append(document.AssignedDevices, assigned)
	}
	for _, m := range spec.Mounts {
		document.MappedDirectories = append(document.MappedDirectories, Mapped{m.Source, m.Destination, slices.Contains(m.Options, "ro")})
	}
	return document
}

// spec returns what the real shim was started with.
func (n *Node) spec(t testing.TB, id string) specs.Spec {
	t.Helper()
	return Decode[specs.Spec](t, n.Config(t, id))
}

// Environment returns the environment of the container id.
func (n *Node) Environment(t testing.TB, id string) map[string]string {
	t.Helper()
	environment := map[string]string{}
	for _, variable := range n.spec(t, id).Process.Env {
		name, value, _ := strings.Cut(variable, "=")
		environment[name] = value
	}
	return environment
}
