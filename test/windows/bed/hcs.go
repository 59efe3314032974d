//go:build e2e && linux

package bed

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Call is a call of the Host Compute Service.
type Call struct {
	Name string
	// Text is its document, JSON in most cases.
	Text string
}

// createCall creates a container.
const createCall = "HcsCreateComputeSystem"

// Calls returns the calls for the compute system id, in order.
func (w *Wine) Calls(t testing.TB, id string) []Call {
	t.Helper()
	data, err := os.ReadFile(w.Linux(`C:\hcs.log`))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var calls []Call
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(fields) == 3 && fields[1] == id {
			calls = append(calls, Call{Name: fields[0], Text: fields[2]})
		}
	}
	return calls
}

// Created returns how often the container id was created.
func (w *Wine) Created(t testing.TB, id string) int {
	t.Helper()
	n := 0
	for _, c := range w.Calls(t, id) {
		if c.Name == createCall {
			n++
		}
	}
	return n
}

// Document is the part of HCS's document that describes a container.
type Document struct {
	AssignedDevices []struct {
		Type               string
		LocationPath       string
		InterfaceClassGUID string `json:"InterfaceClassGuid"`
	}
	MappedDirectories []Mapped

	text string
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

// Document returns the document of the container id, which must have been created once.
func (w *Wine) Document(t testing.TB, id string) Document {
	t.Helper()
	var document struct{ Container Document }
	n := 0
	for _, c := range w.Calls(t, id) {
		if c.Name != createCall {
			continue
		}
		n++
		if err := json.Unmarshal([]byte(c.Text), &document); err != nil {
			t.Fatalf("the HCS document of %s is not JSON: %v\n%s", id, err, c.Text)
		}
		document.Container.text = c.Text
		for i, m := range document.Container.MappedDirectories {
			document.Container.MappedDirectories[i].HostPath = volume.ReplaceAllString(m.HostPath, `C:\`)
		}
	}
	if n != 1 {
		t.Fatalf("container %s was created %d times, want once", id, n)
	}
	return document.Container
}

// Neutral returns the whole document with id replaced.
func (d Document) Neutral(id string) string { return strings.ReplaceAll(d.text, id, "ID") }

// Locations returns the location paths of the assigned devices, in order.
func (d Document) Locations() []string {
	var paths []string
	for _, device := range d.AssignedDevices {
		paths = append(paths, device.LocationPath)
	}
	return paths
}
