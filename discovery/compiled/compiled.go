// Package compiled has the compiled inventory: the GPUs of an inventory file, as
// devices.jsonl in the state directory. It is written with the node policy
// (package policy) by the program that compiles the configuration, and read by
// the programs that look GPUs up.
//
// The file has a header and then a line for each GPU, all in JSON. The header has a
// checksum of each GPU's instance ID and the size of its line, so that a lookup reads
// one GPU's line, whatever the number of GPUs.
//
//	source := compiled.Open(stateDir) // if policy.Policy.Inventory
//	devices, err := source.Find(ctx, []string{instanceID})
package compiled

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"path/filepath"
	"slices"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/durable"
)

const (
	fileName = "devices.jsonl"
	// discoveredName is the file of the GPUs that a live source found.
	discoveredName = "discovered.jsonl"
	format         = 2
)

var errDamaged = errors.New("the file is damaged")

// Path returns the path of the compiled inventory in the state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, fileName) }

// DiscoveredPath returns the path of the file of [WriteDiscovered].
func DiscoveredPath(stateDir string) string { return filepath.Join(stateDir, discoveredName) }

// header is the first line of the file.
type header struct {
	Format int `json:"format"`
	// Index has 8 bytes for each GPU, in the order of the inventory: the checksum of its
	// instance ID and the size of its line. Decoding it takes no time.
	Index []byte `json:"index"`
}

// indexEntry is the number of bytes that the index has for a GPU.
const indexEntry = 8

// Write replaces the compiled inventory in the state directory, which it creates
// if necessary. The file is replaced in one step and synced, unless it is the same.
func Write(stateDir string, devices []discovery.Device) error {
	return write(stateDir, Path(stateDir), devices)
}

// WriteDiscovered is [Write] for the GPUs that a live source found, in a file of their
// own: on Linux, the programs that start containers do not ask the driver.
func WriteDiscovered(stateDir string, devices []discovery.Device) error {
	return write(stateDir, DiscoveredPath(stateDir), devices)
}

func write(stateDir, path string, devices []discovery.Device) error {
	data, err := encode(devices)
	if err == nil {
		err = durable.MakePrivate(stateDir)
	}
	if now, missing := durable.Read(path, int64(len(data))+1); err == nil && (missing != nil || !bytes.Equal(now, data)) {
		err = durable.Replace(path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write compiled inventory: %w", err)
	}
	return nil
}

// Remove removes the compiled inventory, if there is one.
func Remove(stateDir string) error { return durable.Remove(Path(stateDir)) }

func encode(devices []discovery.Device) ([]byte, error) {
	h := header{Format: format}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for _, d := range devices {
		before := lines.Len()
		if err := encoder.Encode(d); err != nil {
			return nil, err
		}
		h.Index = binary.BigEndian.AppendUint32(h.Index, checksum(d.InstanceID))
		h.Index = binary.BigEndian.AppendUint32(h.Index, uint32(lines.Len()-before))
	}
	head, err := json.Marshal(h)
	return slices.Concat(head, []byte("\n"), lines.Bytes()), err
}

// Source reads the compiled inventory. It keeps nothing: each call reads the file.
type Source struct{ stateDir, path string }

var _ discovery.Source = (*Source)(nil)

// Open returns the source of the compiled inventory in the state directory. It
// reads nothing yet.
func Open(stateDir string) *Source { return &Source{stateDir, Path(stateDir)} }

// OpenDiscovered is [Open] for the GPUs of [WriteDiscovered].
func OpenDiscovered(stateDir string) *Source { return &Source{stateDir, DiscoveredPath(stateDir)} }

// Devices implements [discovery.Source]. The order is that of the inventory.
func (s *Source) Devices(context.Context) ([]discovery.Device, error) {
	return s.read(func(int, uint32) bool { return true })
}

// At returns the devices with the given indices in the order of [Source.Devices],
// and reports whether all of them exist.
func (s *Source) At(indices []int) (devices []discovery.Device, ok bool, err error) {
	place := map[int]int{} // of a device among the wanted ones
	wanted, err := s.read(func(n int, _ uint32) bool {
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
	devices, err := s.read(wantIDs(instanceIDs))
	return discovery.Select(devices, instanceIDs), err // Others can have an equal checksum.
}

// wantIDs returns a function that reports whether a key can be that of one of the
// devices.
func wantIDs(instanceIDs []string) func(int, uint32) bool {
	var keys []uint32
	for _, id := range instanceIDs {
		keys = append(keys, checksum(id))
	}
	return func(_ int, k uint32) bool { return slices.Contains(keys, k) }
}

// Watch implements [discovery.Source]. It returns when ctx ends and never calls
// changed: a changed inventory is compiled by the advertiser, which then restarts
// its run with the new policy.
func (s *Source) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// read returns the devices that are wanted, by number and key.
func (s *Source) read(want func(n int, key uint32) bool) (devices []discovery.Device, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read compiled inventory %s: %w; run 'dxctl config apply', or restart directx-advertiser, to compile it again", s.path, err)
		}
	}()
	if err := durable.CheckPrivate(s.stateDir); err != nil {
		return nil, err
	}
	f, err := durable.Open(s.path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return decode(io.NewSectionReader(f, 0, info.Size()), want)
}

// decode reads the header and the lines of the wanted devices.
func decode(content *io.SectionReader, want func(n int, key uint32) bool) ([]discovery.Device, error) {
	head, err := bufio.NewReader(content).ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	var h header
	if err := json.Unmarshal(head, &h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if h.Format != format {
		return nil, fmt.Errorf("format %d, want %d", h.Format, format)
	}
	devices, at := []discovery.Device{}, int64(len(head))
	for n := range len(h.Index) / indexEntry {
		entry := h.Index[n*indexEntry:]
		key, size := binary.BigEndian.Uint32(entry), int64(binary.BigEndian.Uint32(entry[4:]))
		if size > content.Size()-at {
			return nil, errDamaged
		}
		if want(n, key) {
			d, err := decodeDevice(content, at, size)
			if err != nil {
				return nil, fmt.Errorf("device %d: %w", n, err)
			}
			if checksum(d.InstanceID) != key {
				return nil, fmt.Errorf("device %d: %w", n, errDamaged)
			}
			devices = append(devices, d)
		}
		at += size
	}
	if at != content.Size() || len(h.Index)%indexEntry != 0 {
		return nil, errDamaged
	}
	return devices, nil
}

func decodeDevice(content io.ReaderAt, at, size int64) (d discovery.Device, err error) {
	line := make([]byte, size)
	if _, err := content.ReadAt(line, at); err != nil && !errors.Is(err, io.EOF) {
		return d, err
	}
	return d, json.Unmarshal(line, &d)
}

// checksum returns the key of a device in the header.
func checksum(instanceID string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(discovery.NormalizeID(instanceID))) // It never fails.
	return h.Sum32()
}
