package noderuntime

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/shim/realshim"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// NewInstallCommand returns 'dxctl runtime install'.
func NewInstallCommand() *cobra.Command {
	var from, shimDir, stateDir string
	command := &cobra.Command{
		Use:   "install",
		Short: "Install the runtime shim beside containerd",
		Long: `Copies the runtime shim to a directory in which containerd finds it, and tests it. If
that fails, the old file stays. For pods, run 'dxctl runtime configure' next.`,
		Example: `  dxctl runtime install --shim-dir "C:\Program Files\containerd"`,
		RunE: func(c *cobra.Command, _ []string) error {
			return install(c.Context(), c.OutOrStdout(), from, shimDir, stateDir)
		},
	}
	flags := command.Flags()
	addFromFlag(flags, &from)
	containerd.AddShimDirFlag(flags, &shimDir)
	flags.StringVar(&stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	return command
}

func addFromFlag(flags *pflag.FlagSet, from *string) {
	flags.StringVar(from, "from", "", "the shim's `FILE` (default: "+shimfile.FileName()+" beside dxctl)")
}

func install(ctx context.Context, stdout io.Writer, from, shimDir, stateDir string) error {
	if err := containerd.CheckShimDir(shimDir); err != nil {
		return err
	}
	if from == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		from = filepath.Join(filepath.Dir(self), shimfile.FileName())
	}
	if _, err := os.Stat(from); err != nil {
		return errlog.WithRemedy(fmt.Errorf("the shim was not installed: %w", err), "set --from to the shim's file")
	}
	realShim, err := policy.ReadRealShim(stateDir)
	if err != nil {
		return err
	}
	path := filepath.Join(shimDir, shimfile.FileName())
	// Without the real shim, no container of the runtime shim starts.
	if _, err := realshim.Find(path, realShim); err != nil {
		return errlog.WithRemedy(fmt.Errorf("the shim was not installed: %w", err), "set shim.realShim in the configuration")
	}
	changed, err := shimfile.Install(ctx, from, path)
	switch {
	case err != nil:
		return err
	case changed:
		fmt.Fprintf(stdout, "installed %s\n", path)
	default:
		fmt.Fprintf(stdout, "%s is up to date\n", path)
	}
	return shimfile.ClearBypass(stateDir) // The real shim may have changed.
}
