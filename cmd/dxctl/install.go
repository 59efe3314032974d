package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/paths"
	"directx-nri/internal/shimfile"
	"directx-nri/nri/shim"
)

type installOptions struct {
	from, to   string
	shimConfig string
	settings   shimSettings
}

func newInstallCommand() *cobra.Command {
	var o installOptions
	places := paths.Default()
	command := &cobra.Command{
		Use:   "install",
		Short: "Install the runtime shim beside containerd",
		Long: `Copies our runtime shim to where containerd finds it, in stages: the new file
tests itself, takes the place of the old one in one step, and tests itself there.
The old one is put back when that fails, and stays beside the new one until that
has started a container. Containers that run are not touched. Run again, it
changes nothing.

With --inventory, --state-dir or --runtime it writes the shim's configuration
file too. One that somebody has written by hand is never changed.

containerd does not use the shim by itself: 'dxctl runtime configure' comes next.`,
		Example: `  dxctl runtime install --inventory /etc/directx-nri/inventory.yaml

  # Windows, in a HostProcess container
  dxctl.exe runtime install --to "C:\Program Files\containerd"`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), c.OutOrStdout()) },
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.from, "from", "", "the shim's file (default: "+shimfile.Name()+" beside this program)")
	flags.StringVar(&o.to, "to", places.ShimDir, "folder to install it in: containerd's own, or one on its PATH")
	flags.StringVar(&o.settings.Inventory, "inventory", "", "inventory file that describes this node's GPUs, for the shim's configuration file")
	flags.StringVar(&o.settings.StateDir, "state-dir", "", "folder of the allocation records, for the shim's configuration file (default there: "+places.State+")")
	flags.StringVar(&o.settings.Shim.Runtime, "runtime", "", "the real shim, a path, or a name to be looked for, for the shim's configuration file (default there: "+shim.UsualRuntime+")")
	flags.StringVar(&o.shimConfig, "shim-config", places.Config, "the shim's configuration file; for one elsewhere set "+config.Variable+" in containerd's environment")
	return command
}

func (o *installOptions) run(ctx context.Context, stdout io.Writer) error {
	if !filepath.IsAbs(o.to) {
		return cli.Usage("--to %q is not an absolute path: containerd could not find the shim", o.to)
	}
	from := o.from
	if from == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find our own executable: %w", err)
		}
		from = filepath.Join(filepath.Dir(self), shimfile.Name())
	}
	path := filepath.Join(o.to, shimfile.Name())
	plan, err := planShimConfig(o.shimConfig, o.settings)
	if err != nil {
		return err
	}
	// The shim without the real one would stop every container.
	name := plan.config.Shim.Runtime
	if name == "" {
		name = shim.UsualRuntime
	}
	if _, err := shim.FindRuntime(path, name); err != nil {
		return fmt.Errorf("nothing is installed: %w; name it with --runtime", err)
	}
	if err := plan.write(); err != nil {
		return err
	}
	if plan.text != nil {
		fmt.Fprintf(stdout, "%s is written\n", o.shimConfig)
	}
	changed, err := shimfile.Install(ctx, from, path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && o.from == "" {
			return fmt.Errorf("%w; name the shim's file with --from", err)
		}
		return err
	}
	if changed {
		fmt.Fprintf(stdout, "%s is installed\n", path)
	} else {
		fmt.Fprintf(stdout, "%s is up to date\n", path)
	}
	return nil
}

// shimSettings is what of the shim's configuration file we write.
type shimSettings struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	StateDir   string `yaml:"stateDir,omitempty"`
	Inventory  string `yaml:"inventory,omitempty"`
	Shim       struct {
		Runtime string `yaml:"runtime,omitempty"`
	} `yaml:"shim,omitempty"`
}

const shimConfigHead = `# Written by 'dxctl runtime install', and removed by 'dxctl runtime uninstall' as
# long as nobody has changed it.
`

// text returns the configuration file with the settings.
func (s shimSettings) text() ([]byte, error) {
	s.APIVersion, s.Kind = config.APIVersion, config.Kind
	text, err := yaml.Marshal(s)
	return append([]byte(shimConfigHead), text...), err
}

// isOurs tells whether a configuration file is as we have written it, so that
// nothing of anybody else is in it.
func isOurs(text []byte) bool {
	var s shimSettings
	if err := yaml.Unmarshal(text, &s); err != nil {
		return false
	}
	again, err := s.text()
	return err == nil && bytes.Equal(again, text)
}

// shimConfigPlan is what is to become of the shim's configuration file.
type shimConfigPlan struct {
	path string
	// config is what the shim will read.
	config config.Config
	// text is to be written, nil when nothing is.
	text []byte
}

// planShimConfig returns how the file at path gets the settings that are given,
// or an error that says what to edit in a file that others have written.
func planShimConfig(path string, asked shimSettings) (shimConfigPlan, error) {
	plan := shimConfigPlan{path: path}
	present, exists, err := readFile(path)
	if err != nil {
		return plan, err
	}
	// With or without settings, the shim could not use a file that we cannot.
	if plan.config, err = config.Read(path); err != nil {
		return plan, fmt.Errorf("%w; mend the file, or remove it", err)
	}
	if asked == (shimSettings{}) {
		return plan, nil
	}
	if missing := asked.missing(plan.config); exists && !isOurs(present) {
		if missing != "" {
			return plan, fmt.Errorf("%s was not written by this command and is left alone: set %s in it", path, missing)
		}
		return plan, nil
	}
	text, err := asked.text()
	if err != nil {
		return plan, fmt.Errorf("write %s: %w", path, err)
	}
	if plan.config, err = config.Parse(text); err != nil {
		return plan, cli.Usage("%w", err)
	}
	if !bytes.Equal(text, present) {
		plan.text = text
	}
	return plan, nil
}

// missing returns the first of the settings that c does not have, "" when it has
// all.
func (s shimSettings) missing(c config.Config) string {
	for _, setting := range []struct{ key, want, have string }{
		{"stateDir", s.StateDir, c.StateDir},
		{"inventory", s.Inventory, c.Inventory},
		{"shim.runtime", s.Shim.Runtime, c.Shim.Runtime},
	} {
		if setting.want != "" && setting.want != setting.have {
			return fmt.Sprintf("%s: %s", setting.key, setting.want)
		}
	}
	return ""
}

func (p shimConfigPlan) write() error {
	if p.text == nil {
		return nil
	}
	return putPrivate(p.path, p.text)
}
