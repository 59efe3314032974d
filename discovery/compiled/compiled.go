// Package compiled has the compiled inventory: the GPUs of an inventory file, as
// devices.jsonl in the state directory. It is written with the node policy
// (package policy) by the program that compiles the configuration, and read by
// the programs that look GPUs up.
//
// The file has a header, an index with a line for each GPU, and then a line for each
// GPU, all in JSON. A lookup searches the index for the normalized instance ID and
// reads that GPU's line alone, so its cost hardly depends on the number of GPUs.
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
	// maxSize in bytes is more than an inventory of the largest size compiles to.
	maxSize = 64 << 20
)

// Path returns the path of the compiled inventory in the state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, fileName) }

// header is the first line of the file.
type header struct {
	Format int `json:"format"`
	// Index and Devices are the sizes, in bytes, of the index and of what follows it.
	// They detect a damaged file.
	Index   int `json:"index"`
	Devices int `json:"devices"`
}

// entry is a line of the index: where a GPU's line is. Its JSON begins with the key,
// which [Source.Find] searches for.
type entry struct {
	Key  string `json:"key"`
	At   int    `json:"at"` // from the end of the index
	Size int    `json:"size"`
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
	var index, body []byte
	for _, d := range devices {
		text, err := marshal(d)
		if err != nil {
			return nil, err
		}
		line, err := marshal(entry{Key(d.InstanceID), len(body), len(text)})
		if err != nil {
			return nil, err
		}
		index, body = append(index, line...), append(body, text...)
	}
	head, err := marshal(header{format, len(index), len(body)})
	return slices.Concat(head, index, body), err
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
func (s *Source) Devices(context.Context) (devices []discovery.Device, err error) {
	err = s.read(func(f *file) error {
		devices = []discovery.Device{}
		for line := range bytes.Lines(f.index) {
			d, err := f.device(line)
			if err != nil {
				return err
			}
			devices = append(devices, d)
		}
		return nil
	})
	return devices, err
}

// At returns the devices with the given indices in the order of [Source.Devices],
// and reports whether all of them exist.
func (s *Source) At(indices []int) (devices []discovery.Device, ok bool, err error) {
	err = s.read(func(f *file) error {
		lines := bytes.SplitAfter(f.index, []byte("\n"))
		lines = lines[:len(lines)-1]
		for _, i := range indices {
			if i < 0 || i >= len(lines) {
				return nil
			}
			d, err := f.device(lines[i])
			if err != nil {
				return err
			}
			devices = append(devices, d)
		}
		ok = true
		return nil
	})
	return devices, ok, err
}

// Watch implements [discovery.Source]. It returns when ctx ends and never calls
// changed: a changed inventory is compiled by the advertiser, which then restarts
// its run with the new policy.
func (s *Source) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// Find implements [discovery.Source].
func (s *Source) Find(_ context.Context, instanceIDs []string) (devices []discovery.Device, err error) {
	err = s.read(func(f *file) error {
		found := map[string]bool{}
		for _, id := range instanceIDs {
			key := Key(id)
			line, err := f.find(key)
			if err != nil {
				return err
			}
			if line == nil || found[key] {
				continue
			}
			d, err := f.device(line)
			if err != nil {
				return err
			}
			found[key], devices = true, append(devices, d)
		}
		return nil
	})
	return devices, err
}

// read calls look with the open file.
func (s *Source) read(look func(*file) error) error {
	err := durable.CheckPrivate(s.stateDir)
	if err == nil {
		err = readFile(Path(s.stateDir), look)
	}
	if err != nil {
		return fmt.Errorf("read compiled inventory %s: %w; run 'dxctl config apply', or restart directx-advertiser, to compile it again", Path(s.stateDir), err)
	}
	return nil
}

func readFile(path string, look func(*file) error) (err error) {
	opened, err := durable.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	info, err := opened.Stat()
	if err != nil {
		return err
	}
	f, err := open(opened, info.Size())
	if err != nil {
		return err
	}
	return look(f)
}

// file is a compiled inventory whose header and index have been read.
type file struct {
	content io.ReaderAt
	index   []byte
	devices int64 // offset of the first GPU's line
	size    int64 // of these lines
}

func open(content io.ReaderAt, size int64) (*file, error) {
	if size > maxSize {
		return nil, fmt.Errorf("larger than %d bytes", maxSize)
	}
	reader := bufio.NewReader(io.NewSectionReader(content, 0, size))
	head, err := reader.ReadSlice('\n')
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
	f := &file{content: content, devices: int64(len(head) + h.Index), size: int64(h.Devices)}
	if h.Index < 0 || h.Devices < 0 || f.devices+f.size != size {
		return nil, fmt.Errorf("%d bytes: the file is damaged", size)
	}
	f.index = make([]byte, h.Index)
	_, err = io.ReadFull(reader, f.index)
	return f, err
}

// find returns the index's line with the key, or nil. No other text in the index can
// look like the beginning of a line: JSON has no line break in a string.
func (f *file) find(key string) ([]byte, error) {
	prefix, err := marshal(key)
	if err != nil {
		return nil, err
	}
	prefix = slices.Concat([]byte("\n{\"key\":"), bytes.TrimSpace(prefix), []byte(","))
	start := 0
	if !bytes.HasPrefix(f.index, prefix[1:]) {
		if start = bytes.Index(f.index, prefix) + 1; start == 0 {
			return nil, nil
		}
	}
	line, _, _ := bytes.Cut(f.index[start:], []byte("\n"))
	return line, nil
}

// device returns the GPU of a line of the index.
func (f *file) device(line []byte) (d discovery.Device, err error) {
	var e entry
	if err := json.Unmarshal(line, &e); err != nil {
		return d, fmt.Errorf("index: %w", err)
	}
	if e.At < 0 || e.Size < 0 || int64(e.At) > f.size-int64(e.Size) {
		return d, fmt.Errorf("index: invalid place of %q", e.Key)
	}
	text := make([]byte, e.Size)
	if _, err := f.content.ReadAt(text, f.devices+int64(e.At)); err != nil {
		return d, fmt.Errorf("%q: %w", e.Key, err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%q: %w", e.Key, err)
	}
	if d.InstanceID == "" || Key(d.InstanceID) != e.Key {
		return d, fmt.Errorf("the index has %q where the device is %q", e.Key, d.InstanceID)
	}
	return d, nil
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
