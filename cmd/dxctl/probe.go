package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// newProbeCommand returns 'dxctl probe'.
func newProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe",
		Short: "Show the GPUs and libraries that programs find here",
		Long: `Shows what programs find in this container, or on this node: the GPUs, except for software
renderers, and the libraries for graphics, compute and video, of which no driver has all. A
GPU works if Direct3D 12 creates a device on it, on Linux if it answers and has its driver's
files. A first line DIRECTX_DEVICES has the container's own GPUs: on Windows, a container sees
all GPUs. Programs that "exec" starts do not have that variable.

Fails if no GPU works.`,
		Example: `  # in a container that has a copy of dxctl
  dxctl probe`,
		RunE: func(c *cobra.Command, _ []string) error {
			gpus, err := withTimeout(c.Context(), time.Minute, probeGPUs)
			if own, ok := os.LookupEnv(gpuedits.DevicesVariable); ok {
				fmt.Fprintf(c.OutOrStdout(), "%s=%s\n", gpuedits.DevicesVariable, own)
			}
			directories := append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), "/usr/lib/wsl/lib", os.Getenv("SystemRoot")+`\System32`)
			printFindings(c.OutOrStdout(), append(gpus, findLibraries(directories, libraries)...))
			if !slices.ContainsFunc(gpus, func(f finding) bool { return f.mark == markPassed }) {
				err = cmp.Or(err, errlog.WithRemedy(fmt.Errorf("none of %d GPUs works here", len(gpus)),
					"give the container one, in the limits of its pod or with docker run --device; if it works on the node, the container lacks files of the driver"))
			}
			return err
		},
	}
}

// probedGPU returns the finding of a GPU, which works if problem is "".
func probedGPU(description string, luid discovery.LUID, problem string) finding {
	f := finding{markPassed, "GPU", errlog.OneLine(fmt.Sprintf("%s, LUID %s: %s", description, luid, cmp.Or(problem, "works")))}
	if problem != "" {
		f.mark = markFailed
	}
	return f
}

// findLibraries returns a finding for each of the names, which are separated by spaces.
func findLibraries(directories []string, names string) (findings []finding) {
	for name := range strings.FieldsSeq(names) {
		f := finding{"-", "library", name + " is not here"}
		for _, directory := range slices.Backward(directories) { // The first one that has it counts.
			if path := filepath.Join(directory, name); durable.Exists(path) {
				f = finding{markPassed, "library", path}
			}
		}
		findings = append(findings, f)
	}
	return findings
}
