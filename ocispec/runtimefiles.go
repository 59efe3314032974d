package ocispec

import (
	"fmt"
	"slices"
	"strings"

	"directx-nri/discovery"
	"directx-nri/internal/config"
	"directx-nri/internal/winpath"
)

// maxAdded is how many files one entry may add: more is a mistake in a glob, and
// each is a mount that HCS makes.
const maxAdded = 128

// withRuntimeFiles returns d with the changes that rules make to its files, in
// their order. What the driver lists wins over what is added under the same name,
// and so does what was added first; to replace a file it is removed and added.
func withRuntimeFiles(d discovery.Device, rules []config.RuntimeFiles, files Files) (discovery.Device, []Note) {
	c := changer{device: d.Clone(), files: files}
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

type changer struct {
	device discovery.Device
	files  Files
	notes  []Note
}

func (c *changer) remove(globs []string) {
	removed := func(f discovery.RuntimeFile) bool {
		return slices.ContainsFunc(globs, func(glob string) bool { return winpath.MatchPath(glob, f.Source) })
	}
	c.device.System32 = slices.DeleteFunc(c.device.System32, removed)
	c.device.SysWOW64 = slices.DeleteFunc(c.device.SysWOW64, removed)
}

func (c *changer) add(rule config.AddedFile) {
	list := &c.device.System32
	if strings.EqualFold(rule.Folder, "SysWOW64") {
		list = &c.device.SysWOW64
	}
	sources, ok := c.sources(rule.Source)
	if !ok {
		return
	}
	for _, source := range sources {
		file := discovery.RuntimeFile{Source: source, Destination: rule.Destination}
		if file.Destination == "" || winpath.HasWildcard(rule.Source) {
			file.Destination = winpath.Base(source)
		}
		if !winpath.IsLocal(file.Source) || !winpath.IsLocal(file.Destination) || len(winpath.Elements(file.Destination)) != 1 {
			c.note(source, "it is added by the configuration, and its name or path cannot be one in "+rule.Folder, false)
			continue
		}
		i := slices.IndexFunc(*list, func(f discovery.RuntimeFile) bool { return winpath.Equal(f.Destination, file.Destination) })
		if i < 0 {
			*list = append(*list, file)
		} else if !winpath.Equal((*list)[i].Source, source) {
			c.note(source, fmt.Sprintf("it is added by the configuration as %s, which is %s already", file.Destination, (*list)[i].Source), false)
		}
	}
}

// sources returns the files on disk that glob names, relative to the driver store
// path.
func (c *changer) sources(glob string) (sources []string, ok bool) {
	if c.device.DriverStorePath == "" || !winpath.IsLocalGlob(glob) {
		c.note(glob, "it is added by the configuration, and names no file below the driver store path", false)
		return nil, false
	}
	sources, err := c.files.Glob(c.device.DriverStorePath, glob, maxAdded+1)
	switch {
	case err != nil:
		c.note(glob, "it is added by the configuration, and the driver store cannot be read: "+err.Error(), false)
		return nil, false
	case len(sources) == 0:
		c.note(glob, "it is added by the configuration, and the driver has no such file; the container does without", true)
		return nil, false
	case len(sources) > maxAdded:
		c.note(glob, fmt.Sprintf("it is added by the configuration, and more than %d files match; the container gets the first", maxAdded), false)
		sources = sources[:maxAdded]
	}
	return sources, true
}

func (c *changer) note(source, reason string, minor bool) {
	c.notes = append(c.notes, Note{Device: c.device.Name(), Source: winpath.Join(c.device.DriverStorePath, source), Reason: reason, Minor: minor})
}
