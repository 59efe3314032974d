package ocispec

import (
	"fmt"
	"slices"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// maxAdded is how many files one entry of [policy.RuntimeFiles] can add. More
// is a mistake in the pattern, and each file is a mount.
const maxAdded = 128

// withRuntimeFiles returns d with rules applied to its files, in order. A file
// that the driver lists, or that an earlier rule added, wins over a later one of
// the same name.
func withRuntimeFiles(d discovery.Device, rules []policy.RuntimeFiles, files Files) (discovery.Device, []Note) {
	c := fileChanger{device: d.Clone(), files: files}
	for _, rule := range rules {
		if d.VendorID != 0 && uint16(d.VendorID) == rule.Vendor {
			c.remove(rule.Remove)
			for _, add := range rule.Add {
				c.add(add)
			}
		}
	}
	return c.device, c.notes
}

type fileChanger struct {
	device discovery.Device
	files  Files
	notes  []Note
}

func (c *fileChanger) remove(patterns []string) {
	removed := func(f discovery.RuntimeFile) bool {
		return slices.ContainsFunc(patterns, func(pattern string) bool { return winpath.MatchPath(pattern, f.Source) })
	}
	c.device.System32 = slices.DeleteFunc(c.device.System32, removed)
	c.device.SysWOW64 = slices.DeleteFunc(c.device.SysWOW64, removed)
}

func (c *fileChanger) add(rule policy.AddedFile) {
	list := &c.device.System32
	if rule.Directory == policy.SysWOW64 {
		list = &c.device.SysWOW64
	}
	for _, source := range c.sources(rule.Source) {
		file := discovery.RuntimeFile{Source: source, Destination: rule.Destination}
		if file.Destination == "" || winpath.HasWildcard(rule.Source) {
			file.Destination = winpath.Base(source)
		}
		if !winpath.IsLocal(file.Source) || !winpath.IsLocal(file.Destination) || len(winpath.Elements(file.Destination)) != 1 {
			c.note(source, "added by runtimeFiles, but its name or path is not allowed in "+rule.Directory)
			continue
		}
		i := slices.IndexFunc(*list, func(f discovery.RuntimeFile) bool { return winpath.Equal(f.Destination, file.Destination) })
		if i < 0 {
			*list = append(*list, file)
		} else if !winpath.Equal((*list)[i].Source, source) {
			c.note(source, fmt.Sprintf("added by runtimeFiles as %s, but that is already %s", file.Destination, (*list)[i].Source))
		}
	}
}

// sources returns the existing files that match pattern, relative to the driver
// store path.
func (c *fileChanger) sources(pattern string) []string {
	if c.device.DriverStorePath == "" || !winpath.IsLocalGlob(pattern) {
		c.note(pattern, "added by runtimeFiles, but it is not below a driver store path")
		return nil
	}
	sources, err := c.files.Glob(c.device.DriverStorePath, pattern, maxAdded+1)
	switch {
	case err != nil:
		c.note(pattern, "added by runtimeFiles, but the driver store cannot be read: "+err.Error())
		return nil
	case len(sources) == 0:
		c.note(pattern, "added by runtimeFiles, but the driver has no such file")
		c.notes[len(c.notes)-1].Minor = true
	case len(sources) > maxAdded:
		c.note(pattern, fmt.Sprintf("added by runtimeFiles, but more than %d files match; the rest is left out", maxAdded))
		sources = sources[:maxAdded]
	}
	return sources
}

func (c *fileChanger) note(source, reason string) {
	c.notes = append(c.notes, Note{Device: c.device.Name(), Source: winpath.Join(c.device.DriverStorePath, source), Reason: reason})
}
