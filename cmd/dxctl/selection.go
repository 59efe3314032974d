package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"directx-nri/discovery"
	"directx-nri/internal/cli"
	"directx-nri/nri/decision"
)

// selection is the GPUs that a person names by flags.
type selection struct {
	all     bool
	indices []uint
	luids   []string
	paths   []string
}

func (s *selection) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&s.all, "all", false, "each GPU that a container can be given")
	flags.UintSliceVar(&s.indices, "index", nil, "GPU by its `INDEX` in 'dxctl devices'; may be given again, or as a list with commas")
	flags.StringArrayVar(&s.luids, "luid", nil, "GPU by its `LUID`, in hexadecimal (0xC2F5); may be given again")
	flags.StringArrayVar(&s.paths, "path", nil, "GPU by its location `PATH`, or its instance ID where it has none; may be given again")
}

// empty tells that no GPU is named.
func (s *selection) empty() bool {
	return !s.all && len(s.indices)+len(s.luids)+len(s.paths) == 0
}

// check returns what is wrong with the flags themselves. In a request each name
// may be of any kind, so that one of another kind than its flag would be found,
// and be another GPU.
func (s *selection) check() error {
	if s.all && len(s.indices)+len(s.luids)+len(s.paths) > 0 {
		return cli.Usage("--all excludes --index, --luid and --path")
	}
	for _, luid := range s.luids {
		if _, ok := discovery.ParseLUID(luid); !ok {
			return cli.Usage("--luid %q is no LUID in hexadecimal, such as 0xC2F5; 'dxctl devices -o wide' lists them", luid)
		}
	}
	for _, path := range s.paths {
		_, isLUID := discovery.ParseLUID(path)
		_, notIndex := strconv.ParseUint(path, 10, 64)
		switch {
		case isLUID || notIndex == nil || slices.Contains([]string{"", "all", "none"}, strings.ToLower(strings.TrimSpace(path))):
			return cli.Usage("--path %q is no location path, and no instance ID; 'dxctl devices -o name' lists them", path)
		case strings.Contains(path, ","):
			return cli.Usage("--path %q: commas part GPUs; name this one by --index or --luid, and others by a --path each", path)
		}
	}
	return nil
}

// request returns the selection as [decision.Select] reads it, which is also what
// a container asks for with DIRECTX_VISIBLE_DEVICES. "" names no GPU.
func (s *selection) request() string {
	if s.all {
		return "all"
	}
	var list []string
	for _, index := range s.indices {
		list = append(list, strconv.FormatUint(uint64(index), 10))
	}
	return strings.Join(slices.Concat(list, s.luids, s.paths), ",")
}

// choose returns the selected ones of present.
func (s *selection) choose(present []discovery.Device) ([]discovery.Device, error) {
	return decision.Select(s.request(), present)
}
