// Package compiled has the compiled inventory: the GPUs of an inventory file, as
// devices.jsonl in the state directory. It is written with the node policy
// (package policy) by the program that compiles the configuration, and read by
// the programs that look GPUs up.
//
// The first line is a header. Each further line is a JSON object with one GPU. A
// lookup scans the file for a GPU's normalized instance ID and decodes that line
// alone, so its cost hardly depends on the number of GPUs.
//
//	source := compiled.Open(stateDir) // if policy.Policy.Inventory
//	devices, err := source.Find(ctx, []string{instanceID})
package compiled

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"

	"directx-nri/discovery"
	"directx-nri/internal/durable"
)

const (
	fileName = "devices.jsonl"
	format   = 1
	// maxSize in bytes is more than an inventory of the largest size compiles to.
	maxSize = 64 << 20
)

// Path returns the path of the compiled inventory in the state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, fileName) }

// header is the first line of the file.
type header struct {
	Format int `json:"format"`
	// Size is the number of bytes of the lines that follow, which detects a
	// damaged file.
	Size int `json:"size"`
}

// line is a line of the file. Its JSON begins with the key, which [Source.Find]
// searches for.
type line struct {
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
	var body []byte
	for _, d := range devices {
		text, err := marshal(line{Key(d.InstanceID), d})
		if err != nil {
			return nil, err
		}
		body = append(body, text...)
	}
	head, err := marshal(header{format, len(body)})
	return append(head, body...), err
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
	lines, err := s.read()
	if err != nil {
		return nil, err
	}
	devices := []discovery.Device{}
	for text := range bytes.Lines(lines) {
		d, err := decode(text)
		if err != nil {
			return nil, s.wrap(err)
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// Watch implements [discovery.Source]. It returns when ctx ends and never calls
// changed: a changed inventory is compiled by the advertiser, which then restarts
// its run with the new policy.
func (s *Source) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// Find implements [discovery.Source].
func (s *Source) Find(_ context.Context, instanceIDs []string) ([]discovery.Device, error) {
	lines, err := s.read()
	if err != nil {
		return nil, err
	}
	var devices []discovery.Device
	found := map[string]bool{}
	for _, id := range instanceIDs {
		key := Key(id)
		if found[key] {
			continue
		}
		d, ok, err := find(lines, key)
		if err != nil {
			return nil, s.wrap(err)
		}
		if ok {
			found[key] = true
			devices = append(devices, d)
		}
	}
	return devices, nil
}

func (s *Source) wrap(err error) error {
	return fmt.Errorf("read compiled inventory %s: %w; run 'dxctl config apply', or restart directx-advertiser, to compile it again", Path(s.stateDir), err)
}

// read returns the lines after the header.
func (s *Source) read() ([]byte, error) {
	data, err := readFile(Path(s.stateDir))
	if err == nil {
		err = durable.CheckPrivate(s.stateDir)
	}
	if err != nil {
		return nil, s.wrap(err)
	}
	lines, err := split(data)
	if err != nil {
		return nil, s.wrap(err)
	}
	return lines, nil
}

// readFile reads a file into memory that is allocated once.
func readFile(path string) (data []byte, err error) {
	f, err := durable.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", maxSize)
	}
	data = make([]byte, info.Size())
	_, err = io.ReadFull(f, data)
	return data, err
}

// split checks the header and returns what follows it.
func split(data []byte) ([]byte, error) {
	head, lines, _ := bytes.Cut(data, []byte("\n"))
	var h header
	if err := json.Unmarshal(head, &h); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if h.Format != format {
		return nil, fmt.Errorf("format %d, want %d", h.Format, format)
	}
	if h.Size != len(lines) || h.Size > 0 && lines[h.Size-1] != '\n' {
		return nil, fmt.Errorf("%d bytes, want %d: the file is damaged", len(lines), h.Size)
	}
	return lines, nil
}

// find returns the device with the given key. No other text in the file can look
// like the beginning of its line: JSON has no line break in a string.
func find(lines []byte, key string) (d discovery.Device, ok bool, err error) {
	quoted, err := marshal(key)
	if err != nil {
		return d, false, err
	}
	prefix := append([]byte(`{"key":`), bytes.TrimSpace(quoted)...)
	prefix = append(prefix, ',')
	start := 0
	if !bytes.HasPrefix(lines, prefix) {
		if start = bytes.Index(lines, append([]byte("\n"), prefix...)) + 1; start == 0 {
			return d, false, nil
		}
	}
	text, _, _ := bytes.Cut(lines[start:], []byte("\n"))
	d, err = decode(text)
	return d, err == nil, err
}

func decode(text []byte) (discovery.Device, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return discovery.Device{}, err
	}
	if l.Device.InstanceID == "" || Key(l.Device.InstanceID) != l.Key {
		return discovery.Device{}, fmt.Errorf("the key %q is not that of the device %q", l.Key, l.Device.InstanceID)
	}
	return l.Device, nil
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
