package gpus

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Selection is the GPUs that flags select.
type Selection struct {
	all     bool
	indices []string
	luids   []string
	paths   []string
}

// AddFlags adds the flags that select GPUs of a node.
func (s *Selection) AddFlags(command *cobra.Command, n *Node) {
	flags := command.Flags()
	flags.BoolVar(&s.all, "all", false, "all GPUs that containers can have")
	flags.StringSliceVar(&s.indices, "index", nil, "GPU with this `INDEX` in 'dxctl devices', or a comma-separated list")
	flags.StringArrayVar(&s.luids, "luid", nil, "GPU with this `LUID`, such as 0xC2F5; can be repeated")
	flags.StringArrayVar(&s.paths, "path", nil, "GPU with this location `PATH` or instance ID; can be repeated")
	for name, value := range map[string]func(Report) string{
		"index": func(r Report) string { return strconv.Itoa(r.Index) },
		"luid":  func(r Report) string { return r.LUID },
		"path":  Report.Name,
	} {
		// It fails only for a flag that does not exist.
		_ = command.RegisterFlagCompletionFunc(name, n.Complete(value))
	}
}

// Empty reports whether no GPU is selected.
func (s *Selection) Empty() bool {
	return !s.all && len(s.indices)+len(s.luids)+len(s.paths) == 0
}

// Check validates the flags. [decision.Select] accepts any kind of name in any
// place, so a name of another kind could select another GPU.
func (s *Selection) Check() error {
	if s.all && len(s.indices)+len(s.luids)+len(s.paths) > 0 {
		return cli.Usage("--all excludes --index, --luid and --path")
	}
	for _, index := range s.indices {
		if _, err := strconv.ParseUint(index, 10, 32); err != nil {
			return cli.Usage("--index %q is not an index in 'dxctl devices', such as 0", index)
		}
	}
	for _, luid := range s.luids {
		if _, ok := discovery.ParseLUID(luid); !ok {
			return cli.Usage("--luid %q is not a LUID in hexadecimal, such as 0xC2F5", luid)
		}
	}
	for _, path := range s.paths {
		_, isLUID := discovery.ParseLUID(path)
		_, notIndex := strconv.ParseUint(path, 10, 64)
		switch {
		case isLUID || notIndex == nil || slices.Contains([]string{"", "all", "none"}, strings.ToLower(strings.TrimSpace(path))):
			return cli.Usage("--path %q is neither a location path nor an instance ID; 'dxctl devices -o name' lists them", path)
		case strings.Contains(path, ","):
			return cli.Usage("--path %q has a comma: use --index or --luid for this GPU, and repeat --path for others", path)
		}
	}
	return nil
}

// Request returns the selection in the form of DIRECTX_VISIBLE_DEVICES, "" if it is
// empty.
func (s *Selection) Request() string {
	if s.all {
		return "all"
	}
	return strings.Join(slices.Concat(s.indices, s.luids, s.paths), ",")
}

// ShimFlags returns the flags that run a container with the runtime shim and request
// GPUs, in the form that [decision.Select] reads. Images cannot set annotations. On
// Windows, ctr 1.7 drops them.
func ShimFlags(os ocispec.OS, request string) []string {
	flags := []string{"--runtime", shimfile.RuntimeName}
	if os == ocispec.Windows {
		return append(flags, "--env", decision.VisibleVariable+"="+request)
	}
	return append(flags, "--annotation", decision.VisibleAnnotation+"="+request)
}
