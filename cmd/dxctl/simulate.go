package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"directx-nri/advertiser"
	"directx-nri/advertiser/resources"
	"directx-nri/cmd/dxctl/simulate"
	"directx-nri/cmd/dxctl/specdiff"
	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
	"directx-nri/internal/hostfiles"
	"directx-nri/ocispec"
)

type simulateOptions struct {
	gpuSource
	manifest    string
	replicas    int
	given       func(flag string) bool
	count       int
	containerOS string
	hostRoot    string
	output      string
}

func newSimulateCommand() *cobra.Command {
	var o simulateOptions
	command := &cobra.Command{
		Use:   "simulate -f POD.yaml",
		Short: "Tell which GPUs a manifest's pods would get, with nothing started",
		Long: `Plays a node for the pods of a manifest: what the kubelet is offered, which
replicas of which GPUs each container gets, and the OCI spec that comes of it.
Neither a node nor a kubelet nor containerd is needed, and nothing is started or
written. The node's GPUs are those of an inventory file, of any node; of a Windows
node 'dxctl devices -o json' tells what to write there. The rules, and all else
that decides what a container gets, are those of --config FILE, of any node, and
without it this node's; what assignmentMode auto stands for, this machine's Windows
says.

The device plugin, its records and the decision are the node's own. The
scheduler, the kubelet and containerd are played, for GPUs alone: processor,
memory, affinity, taints and runtime classes are not looked at, and no image is.
Tokens are random on a node; here TOKEN-1 stands for the first.

The manifest may hold several documents: Pods, and what makes pods (Deployment,
DaemonSet, StatefulSet, ReplicaSet, Job, CronJob). All run at the same time.

Exit status: 0 when every pod would run, 1 when one would not, and it is said
which and why.`,
		Example: `  dxctl simulate --inventory deployments/inventory/windows-g4dn.yaml -f deployments/examples/nvidia-smi/display.yaml
  # nine pods for two GPUs of four replicas each: the ninth waits
  dxctl simulate --inventory gpus.yaml -f pod.yaml --replicas 4 --count 9 -o table
  # the rules of a file that no node has yet
  dxctl simulate --inventory gpus.yaml --config config.yaml -f pod.yaml -o table
  # the new OCI spec of a pod that the cluster has
  kubectl get pod render -o yaml | dxctl simulate --inventory gpus.yaml -f - -o spec`,
		RunE: func(c *cobra.Command, _ []string) error {
			o.given = c.Flags().Changed
			return o.run(c.Context(), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := command.Flags()
	o.addFlags(flags)
	flags.StringVarP(&o.manifest, "filename", "f", "", "the manifest's `FILE`, - for standard input")
	flags.IntVar(&o.replicas, "replicas", 0, "how many containers may share a GPU where a rule does not say (default: as in the configuration)")
	flags.IntVar(&o.count, "count", 0, "how many pods of each kind run; 0 for as many as the manifest asks for")
	flags.StringVar(&o.containerOS, "container-os", "", "the node's operating system: windows or linux (default: the pod's, and else what suits the GPUs)")
	flags.StringVar(&o.hostRoot, "host-root", "", "`FOLDER` that is the node's root, to see which of the drivers' files are there (default: all are taken to be there)")
	flags.StringVarP(&o.output, "output", "o", simulateDiff, "form of the output: diff, spec, table or json")
	completeValues(command, "output", simulateDiff, simulateSpec, outputTable, outputJSON)
	completeValues(command, "container-os", string(ocispec.Windows), string(ocispec.Linux))
	return command
}

const (
	simulateDiff = "diff"
	simulateSpec = "spec"
)

func (o *simulateOptions) check() error {
	switch {
	case !slices.Contains([]string{simulateDiff, simulateSpec, outputTable, outputJSON}, o.output):
		return cli.Usage("--output %q is none of %s, %s, %s and %s", o.output, simulateDiff, simulateSpec, outputTable, outputJSON)
	case o.manifest == "":
		return cli.Usage("no manifest is named: name its file with -f, or - for standard input")
	case o.count < 0:
		return cli.Usage("--count %d is less than 0", o.count)
	}
	if o.containerOS != "" {
		if _, err := ocispec.ParseOS(o.containerOS); err != nil {
			return cli.Usage("--container-os: %w", err)
		}
	}
	return nil
}

// configuration returns that of the node that is played: of the file that is named,
// whoever wrote it, and else of this node.
func (o *simulateOptions) configuration(stderr io.Writer) (c config.Config, err error) {
	var overrides []config.Override
	if o.given("replicas") {
		overrides = append(overrides, config.Override{Origin: "--replicas", Key: "replicas", Value: strconv.Itoa(o.replicas)})
	}
	if o.given("config") && o.file != "" {
		c, err = config.Inspect(o.file, append(config.Environment(os.Environ()), overrides...)...)
	} else {
		c, err = o.settings(stderr, overrides...)
	}
	if wrong := (*config.OverrideError)(nil); errors.As(err, &wrong) {
		return config.Config{}, cli.Usage("%w", wrong)
	}
	return c, err
}

func (o *simulateOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := o.configuration(stderr)
	if err != nil {
		return err
	}
	workloads, others, err := o.read(stdin, resources.Names(c.Resources))
	if err != nil {
		return err
	}
	source, err := o.openAs(c, io.Discard)
	if err != nil {
		return err
	}
	node := simulate.Node{Source: source, Config: c, ByClass: policyOf(c, ocispec.Windows).ByClass, OS: ocispec.OS(o.containerOS)}
	if o.hostRoot != "" {
		if err := checkHostRoot(o.hostRoot); err != nil {
			return err
		}
		node.Files = hostfiles.Root(o.hostRoot)
	}
	report, err := simulate.Run(ctx, node, workloads, o.count)
	if err != nil {
		return err
	}
	for _, other := range others {
		fmt.Fprintf(stderr, "%s is passed over: it has no pod\n", other)
	}
	if err := o.print(stdout, stderr, report); err != nil {
		return err
	}
	if failed := report.Failed(); failed > 0 {
		return fmt.Errorf("%d of %d pods would not run on this node", failed, len(report.Pods))
	}
	return nil
}

// read reads the manifest.
func (o *simulateOptions) read(stdin io.Reader, ours []string) (workloads []simulate.Workload, others []string, err error) {
	name := "standard input"
	if o.manifest != "-" {
		name = o.manifest
		f, err := os.Open(o.manifest)
		if err != nil {
			return nil, nil, fmt.Errorf("%w; name the manifest with -f", err)
		}
		defer f.Close() //nolint:errcheck // It was only read.
		stdin = f
	}
	workloads, others, err = simulate.Read(stdin, ours...)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return workloads, others, nil
}

func (o *simulateOptions) print(stdout, stderr io.Writer, r simulate.Report) error {
	switch o.output {
	case outputJSON:
		return printAs(stdout, outputJSON, r)
	case simulateSpec:
		return printSpecs(stdout, stderr, r)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(stderr, "note: %s\n", note)
	}
	to := terminal.Of(stdout, os.Getenv)
	if o.output == outputTable {
		return printPods(stdout, to, r)
	}
	return printStory(stdout, to, r)
}

// printSpecs prints the spec of each container that starts, and tells of the
// others on stderr.
func printSpecs(stdout, stderr io.Writer, r simulate.Report) error {
	for _, p := range r.Pods {
		if p.Reason != "" {
			fmt.Fprintf(stderr, "pod %s/%s is %s: %s\n", p.Namespace, p.Name, p.State, p.Reason)
		}
		for _, c := range p.Containers {
			if c.After == nil {
				fmt.Fprintf(stderr, "pod %s/%s: container %s %s: %s\n", p.Namespace, p.Name, c.Name, verb(c.State), c.Reason)
				continue
			}
			text, err := specdiff.Pretty(c.After)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(stdout, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// printPods prints a line for each replica, and one for what has none.
func printPods(stdout io.Writer, to terminal.Terminal, r simulate.Report) error {
	table := terminal.Table{Columns: []terminal.Column{
		{Title: "POD", Give: 4, Least: 12}, {Title: "CONTAINER", Give: 3, Least: 9}, {Title: "STATE"}, {Title: "RESOURCE", Give: 2},
		{Title: "GPU", Give: 6, Least: 12}, {Title: "REPLICA", Right: true}, {Title: "WHY", Give: 5, Least: 10},
	}}
	row := func(p simulate.Pod, container, state, resource, gpu, replica, why string) {
		table.Add(terminal.Cell{Text: p.Namespace + "/" + p.Name}, terminal.Cell{Text: container}, terminal.Cell{Text: state, Style: stateStyle(state)},
			terminal.Cell{Text: resource}, terminal.Cell{Text: gpu}, terminal.Cell{Text: replica}, terminal.Cell{Text: why})
	}
	for _, p := range r.Pods {
		if len(p.Containers) == 0 {
			row(p, "", p.State, "", "", "", p.Reason)
		}
		for _, c := range p.Containers {
			if len(c.Allocations) == 0 {
				row(p, c.Name, c.State, "", "", "", c.Reason)
			}
			for _, a := range c.Allocations {
				for _, replica := range a.Replicas {
					row(p, c.Name, c.State, path.Base(a.Resource), cmp.Or(replica.LocationPath, replica.InstanceID), replicaNumber(replica.ID), c.Reason)
				}
			}
		}
	}
	return table.Print(stdout, to)
}

func stateStyle(state string) terminal.Style {
	switch state {
	case simulate.StateStarts:
		return terminal.Good
	case simulate.StatePending, simulate.StateWaits:
		return terminal.Warn
	}
	return terminal.Bad
}

// story tells a simulation as it goes on.
type story struct {
	text strings.Builder
	to   terminal.Terminal
}

func printStory(stdout io.Writer, to terminal.Terminal, r simulate.Report) error {
	s := &story{to: to}
	if r.ReplicasPerGPU > 0 {
		s.say(terminal.Bold, "", "The kubelet is offered, with %s of each GPU:", plural(r.ReplicasPerGPU, "replica"))
	} else {
		s.say(terminal.Bold, "", "The kubelet is offered:")
	}
	for _, resource := range r.Resources {
		s.say(terminal.Plain, "  ", "%-30s %d", resource.Name, resource.Allocatable)
		for _, g := range resource.GPUs {
			line := "    " + nameOf(g.Description, g.LocationPath, g.InstanceID)
			if r.ReplicasPerGPU == 0 {
				line += ", " + plural(len(g.Replicas), "replica")
			}
			if g.Health != "healthy" {
				line += ": " + g.Health
			}
			s.say(terminal.Plain, line, "")
		}
	}
	if r.Injection == string(config.InjectByKubelet) {
		s.say(terminal.Plain, "", "Containers get their GPUs by the advertiser's answer to the kubelet, not by the NRI plugin or the shim (injection: kubelet).")
	}
	for _, p := range r.Pods {
		if err := s.pod(p); err != nil {
			return err
		}
	}
	_, err := io.WriteString(stdout, s.text.String())
	return err
}

// say adds a line that is one whatever is in its texts.
func (s *story) say(style terminal.Style, indent, format string, args ...any) {
	fmt.Fprintf(&s.text, "%s\n", s.to.Paint(style, terminal.Printable(indent+fmt.Sprintf(format, args...))))
}

func (s *story) pod(p simulate.Pod) error {
	s.text.WriteByte('\n')
	s.say(terminal.Bold, "", "Pod %s/%s, %s, %s", p.Namespace, p.Name, p.OS, verb(p.State))
	if p.Reason != "" {
		s.say(stateStyle(p.State), "  ", "%s", p.Reason)
	}
	for _, note := range p.Notes {
		s.say(terminal.Dim, "  ", "note: %s", note)
	}
	for _, c := range p.Containers {
		if err := s.container(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) container(c simulate.Container) error {
	kind := c.Kind
	if kind != "container" {
		kind += " container"
	}
	s.say(terminal.Plain, "  ", "%s %s %s", kind, c.Name, verb(c.State))
	for _, a := range c.Allocations {
		s.say(terminal.Plain, "    ", "the kubelet allocates %d of %s:", len(a.Replicas), a.Resource)
		for _, r := range a.Replicas {
			s.say(terminal.Plain, "      ", "replica %s of %s", replicaNumber(r.ID), nameOf(r.Description, r.LocationPath, r.InstanceID))
		}
		if a.Token != "" {
			s.say(terminal.Plain, "    ", "%s is written, and the container gets %s=%s", a.Record, a.Variable, a.Token)
		}
	}
	if c.Reason != "" {
		s.say(stateStyle(c.State), "    ", "%s", c.Reason)
	}
	for _, note := range c.Notes {
		s.say(terminal.Dim, "    ", "note: %s", note)
	}
	if c.After == nil {
		return nil
	}
	text, err := specdiff.Unified("config.json as containerd writes it", "config.json as the container gets it", c.Before, c.After)
	if err != nil {
		return err
	}
	if text == "" {
		s.say(terminal.Plain, "    ", "its config.json stays as containerd writes it")
		return nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		s.say(diffStyle(line), "    ", "%s", line)
	}
	return nil
}

// diffStyle returns how a line of a unified diff looks.
func diffStyle(line string) terminal.Style {
	switch {
	case strings.HasPrefix(line, "+"):
		return terminal.Good
	case strings.HasPrefix(line, "-"):
		return terminal.Bad
	case strings.HasPrefix(line, "@@"):
		return terminal.Dim
	}
	return terminal.Plain
}

// verb returns what a pod or container in that state does.
func verb(state string) string {
	if state == simulate.StateStarts || state == simulate.StateWaits {
		return state
	}
	return "is " + state
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// nameOf names a GPU for a person.
func nameOf(description, locationPath, instanceID string) string {
	place := cmp.Or(locationPath, instanceID)
	if description == "" {
		return place
	}
	return description + " at " + place
}

// replicaNumber returns the number in a replica's ID, or the ID where there is
// none.
func replicaNumber(id string) string {
	if _, number, ok := advertiser.ParseReplicaID(id); ok {
		return fmt.Sprint(number)
	}
	return id
}
