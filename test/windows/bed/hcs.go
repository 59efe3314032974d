//go:build e2e && windows

package bed

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// create is the call of the Host Compute Service that creates a container.
const create = "HcsCreateComputeSystem"

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

// documents returns the document of each creation of the container id, on Windows itself what
// the real shim was started with.
func (n *Node) documents(t testing.TB, id string) (documents []Document) {
	t.Helper()
	if !n.Doubled {
		for _, config := range n.starts(t, id) {
			documents = append(documents, requested(Decode[specs.Spec](t, config)))
		}
		return documents
	}
	for _, c := range n.Calls(t, id) {
		if c.Name == create {
			documents = append(documents, Decode[struct{ Container Document }](t, c.Text).Container)
		}
	}
	return documents
}

// Created returns how often the container id was created.
func (n *Node) Created(t testing.TB, id string) (times int) {
	t.Helper()
	return len(n.documents(t, id))
}

// Document is the part of HCS's document that describes a container.
type Document struct {
	AssignedDevices   []Assigned
	MappedDirectories []Mapped
}

// Assigned is a device of the host in a container.
type Assigned struct {
	Type               string
	LocationPath       string
	InterfaceClassGUID string `json:"InterfaceClassGuid"`
}

// Mapped is a directory or file of the host in a container. The case of the paths does
// not matter.
type Mapped struct {
	HostPath      string
	ContainerPath string
	ReadOnly      bool
}

// volume is the prefix of the paths that runhcs resolves on the host.
var volume = regexp.MustCompile(`^\\\\\?\\Volume\{[^}]*\}\\`)

// Document returns the document of the container id, which must have been created once.
func (n *Node) Document(t testing.TB, id string) Document {
	t.Helper()
	documents := n.documents(t, id)
	if len(documents) != 1 {
		t.Fatalf("container %s was created %d times, want once", id, len(documents))
	}
	for i, m := range documents[0].MappedDirectories {
		documents[0].MappedDirectories[i].HostPath = volume.ReplaceAllString(m.HostPath, `C:\`)
	}
	return documents[0]
}

// requested returns the document that a specification requests.
func requested(spec specs.Spec) (document Document) {
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
