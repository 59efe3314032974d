package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/cli"
	"directx-nri/internal/paths"
)

type doctorOptions struct {
	nodeFacts
	role, servedBy string
	output         string
	bundle         string
	force          bool
}

// outputText is output for people.
const outputText = "text"

func newDoctorCommand() *cobra.Command {
	places := paths.Default()
	o := doctorOptions{nodeFacts: nodeFacts{target: target{os: runtime.GOOS}}}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems of this node, and their remedies",
		Long: `Checks the node from end to end and changes nothing. Each problem is printed with its
consequence and remedy. Requires root or an administrator.

Exit status: 1 if there is a problem, 2 if something could not be checked.`,
		Example: `  # for a bug report; read it before you send it
  dxctl doctor --support-bundle node1.zip`,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVarP(&o.output, "output", "o", outputText, "output format: text or json")
	flags.StringVar(&o.role, "role", string(doctor.RoleAuto), "use of the node: kubernetes, standalone or auto")
	flags.StringVar(&o.servedBy, "served-by", string(doctor.ServedByAuto), "component that adds GPUs to containers: nri, shim, kubelet or auto")
	flags.StringVar(&o.bundle, "support-bundle", "", "write a zip `FILE` for a bug report, without secrets")
	flags.BoolVar(&o.force, "force", false, "replace the file of --support-bundle if it exists")
	flags.StringVar(&o.nriSocket, "nri-socket", places.NRI, "containerd's NRI `SOCKET`")
	flags.StringVar(&o.kubeletDir, "kubelet-dir", places.DevicePlugins, "the kubelet's device plugin `DIRECTORY`")
	flags.StringVar(&o.podResources, "pod-resources-socket", places.PodResources, "the kubelet's PodResources `SOCKET` or named pipe")
	flags.StringVar(&o.containerdState, "containerd-state", places.ContainerdState, "containerd's state `DIRECTORY`")
	return command
}

func (o *doctorOptions) check() error {
	roles := []string{string(doctor.RoleKubernetes), string(doctor.RoleStandalone), string(doctor.RoleAuto)}
	servers := []string{string(doctor.ServedByNRI), string(doctor.ServedByShim), string(doctor.ServedByKubelet), string(doctor.ServedByAuto)}
	switch {
	case o.force && o.bundle == "":
		return cli.Usage("--force requires --support-bundle")
	case o.servedBy == string(doctor.ServedByNRI) && o.os == "windows":
		return cli.Usage("--served-by nri is not possible on Windows: containerd calls no NRI plugin there")
	}
	if err := errors.Join(checkChoice("output", o.output, outputText, outputJSON), checkChoice("role", o.role, roles...), checkChoice("served-by", o.servedBy, servers...)); err != nil {
		return err
	}
	if info, err := os.Lstat(o.bundle); o.bundle != "" && err == nil {
		switch {
		case !info.Mode().IsRegular():
			return cli.Usage("--support-bundle: %s is not a regular file", o.bundle)
		case !o.force:
			return cli.Usage("--support-bundle: %s exists; --force replaces it", o.bundle)
		}
	}
	return o.nodeFacts.check()
}

// checkChoice returns an error unless value is one of choices.
func checkChoice(flag, value string, choices ...string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return cli.Usage("--%s %q: want %s", flag, value, either(choices))
}

func (o *doctorOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	facts := o.gather(ctx)
	facts.Role, facts.ServedBy = doctor.Role(o.role), doctor.ServedBy(o.servedBy)
	if err := ctx.Err(); err != nil {
		return cli.WithStatus(exitUnknown, fmt.Errorf("check the node: %w", err))
	}
	report := doctor.Examine(facts)
	var err error
	if o.output == outputJSON {
		err = printAs(stdout, outputJSON, report)
	} else {
		err = report.Print(stdout)
	}
	if err == nil && o.bundle != "" {
		err = o.writeBundle(ctx, stderr, facts.Redact())
	}
	switch {
	case err != nil:
		return err
	case report.Result == doctor.Findings:
		return errors.New("this node has problems")
	case report.Result == doctor.NotKnown:
		return cli.WithStatus(exitUnknown, errors.New("some checks could not be performed"))
	}
	return nil
}
