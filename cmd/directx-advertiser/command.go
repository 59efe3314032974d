package main

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/advertiser"
	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/shim/diversion"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

func newCommand() *cobra.Command {
	var o advertiser.Options
	var c config.Compiler
	command := &cobra.Command{
		Use:   "directx-advertiser",
		Short: "Offer this node's GPUs to the kubelet and record what it allocates",
		Long: `directx-advertiser is a Kubernetes device plugin. Without other rules in config.yaml it
offers two resources:

  directx.microsoft.com/display   GPUs with Direct3D 11 or 12 graphics
  directx.microsoft.com/compute   compute-only devices (MCDM)

It offers --replicas replicas of each GPU and records which of them the kubelet allocates.
A container gets the ID of that record, and no GPU. When containerd creates the container,
the NRI plugin directx-nri, or on Windows the runtime shim, adds the GPUs of the record.
A container to which no GPU was added does not start. On Windows, it puts the shim in the place
of containerd's on a node with a GPU, and moves containerd's back when it ends.

It compiles config.yaml into the node policy, which all programs of the node use, at the
start and whenever the file changes. While the file is invalid, the last policy stays in
force. It needs no access to the cluster, and runs as root. The kubelet and containerd may
be restarted at any time.`,
		Example: `  # four containers can share each GPU of the inventory file
  directx-advertiser --inventory /etc/directx-nri/gpus.yaml --replicas 4

  # Windows and WSL 2: the GPUs of the node
  directx-advertiser --replicas 4`,
		Version: cli.Version(version),
	}
	defaults := paths.Default()
	set := command.Flags()
	set.StringVar(&c.File, "config", defaults.Config, "configuration `FILE`; the default one need not exist")
	config.AddFlags(set)
	set.StringVar(&c.StateDir, "state-dir", defaults.State, "`DIRECTORY` of the node policy and the allocation records, the same for all programs")
	set.StringVar(&o.RuntimeDir, "runtime-dir", defaults.Runtime, "`DIRECTORY` of directx-nri's socket, the same for both programs")
	set.StringVar(&o.HostRoot, "host-root", "/", "`DIRECTORY` where the node's root is mounted, if this program runs in a container on Linux")
	set.StringVar(&o.KubeletDir, "kubelet-dir", defaults.DevicePlugins, "the kubelet's device plugin `DIRECTORY`")
	set.StringVar(&o.PodResources, "pod-resources-socket", defaults.PodResources, "the kubelet's PodResources `SOCKET` or named pipe")
	set.StringVar(&o.CRISocket, "cri-socket", "", "containerd's CRI `SOCKET` or named pipe, on Windows")
	shimDir := set.String("shim-dir", "", "on Windows, the `DIRECTORY` of the containerd-shim-runhcs-v1.exe that containerd runs; by default it is found")
	set.StringVar(&o.LabelsFile, "labels-file", "", "`FILE` to write with labels that describe the GPUs, as node-feature-discovery and directx-labeler read them")
	c.NodeOS = runtime.GOOS
	cli.AddChoice(command, &c.NodeOS, "node-os", "", "operating system of the node's containers, if it is not this system's",
		"windows", "linux")
	command.RunE = func(command *cobra.Command, _ []string) error {
		debug.SetGCPercent(50) // Reading the GPUs takes much memory for a moment, and then the program is idle.
		var err error
		if c.Flags, err = config.ReadFlags(set); err != nil {
			return cli.UsageError("%w", err)
		}
		log := errlog.NewLogger(command.ErrOrStderr())
		if runtime.GOOS == "windows" {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.Diversion = diversion.NewKeeper(*shimDir, filepath.Join(filepath.Dir(self), shimfile.FileName()), log)
			o.Dxctl = filepath.Join(filepath.Dir(self), "dxctl.exe")
		}
		c.Required, c.ReservedDirs = set.Changed("config"), []string{o.RuntimeDir, o.KubeletDir}
		return advertiser.New(o, c, cli.Version(version), log).Run(command.Context())
	}
	cli.AddEnvironment(command)
	return command
}
