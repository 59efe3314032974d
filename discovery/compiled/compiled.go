// Package compiled has the compiled inventory: the GPUs of an inventory file, as
// devices.jsonl in the state directory. It is written with the node policy
// (package policy) by the program that compiles the configuration, and read by
// the programs that look GPUs up.
//
// The file has a header and then a line for each GPU, all in JSON. A line begins with
// the normalized instance ID, so that a lookup decodes one GPU alone and its cost hardly
// depends on the number of GPUs.
//
//	source := compiled.Open(stateDir) // if policy.Policy.Inventory
//	devices, err := source.Find(ctx, []string{instanceID})
package compiled

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"directx-nri/discovery"
	"directx-nri/internal/durable"
)

const (
	fileName = "devices.jsonl"
	format   = 1
	// maxLine in bytes is more than a device of an inventory of the largest size has.
	maxLine = 16 << 20
)

// Path returns the path of the compiled inventory in the state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, fileName) }

// header is the first line of the file.
type header struct {
	Format int `json:"format"`
	// Devices is the number of further lines, to detect a damaged file.
	Devices int `json:"devices"`
}

// entry is the line of a GPU. Its JSON begins with the key, which [Source.Find] searches
// for.
type entry struct {
	Key    string           `json:"key"`
	Device discovery.Device `json:"device"`
}

// Write replaces the compiled inventory in the state directory, which it creates
// if necessary. The file is replaced in one step and synced.
func Write(stateDir string, devices []discovery.Device) error {
	data, err := encode(devices)
	if err == nil {
		err = durable.MakePrivate(stateDir)
	}
	if err == nil {
		err = durable.Replace(Path(stateDir), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write compiled inventory: %w", err)
	}
	return nil
}

// Remove removes the compiled inventory, if there is one.
func Remove(stateDir string) error { return durable.Remove(Path(stateDir)) }

func encode(devices []discovery.Device) ([]byte, error) {
	var lines []byte
	for _, d := range devices {
		line, err := marshal(entry{Key(d.InstanceID), d})
		if err != nil {
			return nil, err
		}
		lines = append(lines, line...)
	}
	head, err := marshal(header{format, len(devices)})
	return append(head, lines...), err
}

// marshal returns v as one line. "&", which is in each PCI instance ID, is not escaped.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return b.Bytes(), err
}

// Source reads the compiled inventory. It keeps nothing: each call reads the file.
type Source struct{ stateDir string }

var _ discovery.Source = (*Source)(nil)

// Open returns the source of the compiled inventory in the state directory. It
// reads nothing yet.
func Open(stateDir string) *Source { return &Source{stateDir} }

// Devices implements [discovery.Source]. The order is that of the inventory.
func (s *Source) Devices(context.Context) ([]discovery.Device, error) {
	return s.read(func(int, []byte) bool { return true })
}

// At returns the devices with the given indices in the order of [Source.Devices],
// and reports whether all of them exist.
func (s *Source) At(indices []int) (devices []discovery.Device, ok bool, err error) {
	place := map[int]int{} // of a device among the wanted ones
	wanted, err := s.read(func(n int, _ []byte) bool {
		want := slices.Contains(indices, n)
		if want {
			place[n] = len(place)
		}
		return want
	})
	for _, i := range indices {
		if at, exists := place[i]; exists && err == nil {
			devices = append(devices, wanted[at])
		}
	}
	return devices, len(devices) == len(indices), err
}

// Find implements [discovery.Source].
func (s *Source) Find(_ context.Context, instanceIDs []string) ([]discovery.Device, error) {
	return s.read(wantIDs(instanceIDs))
}

// wantIDs returns a function that reports whether a line is that of one of the devices.
// No other text can look like the beginning of a line: JSON has no line break in a
// string.
func wantIDs(instanceIDs []string) func(int, []byte) bool {
	var prefixes [][]byte
	for _, id := range instanceIDs {
		if key, err := marshal(Key(id)); err == nil {
			prefixes = append(prefixes, slices.Concat([]byte(`{"key":`), bytes.TrimSpace(key), []byte(",")))
		}
	}
	return func(_ int, line []byte) bool {
		return slices.ContainsFunc(prefixes, func(prefix []byte) bool { return bytes.HasPrefix(line, prefix) })
	}
}

// Watch implements [discovery.Source]. It returns when ctx ends and never calls
// changed: a changed inventory is compiled by the advertiser, which then restarts
// its run with the new policy.
func (s *Source) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// read returns the devices of the lines that are wanted, by number and content.
func (s *Source) read(want func(n int, line []byte) bool) (devices []discovery.Device, err error) {
	path := Path(s.stateDir)
	defer func() {
		if err != nil {
			err = fmt.Errorf("read compiled inventory %s: %w; run 'dxctl config apply', or restart directx-advertiser, to compile it again", path, err)
		}
	}()
	if err := durable.CheckPrivate(s.stateDir); err != nil {
		return nil, err
	}
	f, err := durable.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return decode(f, want)
}

// decode reads one line at a time, so that a large inventory takes no memory.
func decode(content io.Reader, want func(n int, line []byte) bool) ([]discovery.Device, error) {
	lines := bufio.NewScanner(content)
	lines.Buffer(nil, maxLine)
	lines.Scan()
	var h header
	if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if h.Format != format {
		return nil, fmt.Errorf("format %d, want %d", h.Format, format)
	}
	devices, n := []discovery.Device{}, 0
	for ; lines.Scan(); n++ {
		if !want(n, lines.Bytes()) {
			continue
		}
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, err
		}
		if e.Device.InstanceID == "" || Key(e.Device.InstanceID) != e.Key {
			return nil, fmt.Errorf("the key of device %q is %q", e.Device.InstanceID, e.Key)
		}
		devices = append(devices, e.Device)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if n != h.Devices {
		return nil, fmt.Errorf("%d devices, want %d: the file is damaged", n, h.Devices)
	}
	return devices, nil
}

// Key returns a string that is the same for all instance IDs that
// [strings.EqualFold], and so [discovery.Find], considers equal.
func Key(instanceID string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, instanceID)
}
