package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"directx-nri/cmd/dxctl/terminal"
	"directx-nri/internal/cli"
	"directx-nri/internal/config"
)

type configShowOptions struct {
	file   string
	output string
}

func newConfigShowCommand() *cobra.Command {
	var o configShowOptions
	command := &cobra.Command{
		Use:   "show",
		Short: "Show the configuration that is in force, and where each value comes from",
		Long: `Shows each setting's value and where it comes from: a line of the file, a variable
of the environment, or the default; and the rules for resources and runtime files.
Where the file has turned bad, its last good copy is shown, and it is said so.

The variables are those of this shell. Flags of a daemon, and variables that it was
started with, are not seen here.

  -o table  for people
  -o yaml   a configuration file that says the same, with what is not the default
  -o json   the settings with where they come from, and the rules`,
		Example: `  dxctl config show
  dxctl config show -o yaml > config.yaml

  # what a preset stands for
  DIRECTX_NRI_PRESET=tensorworks dxctl config show --config "" -o yaml`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.OutOrStdout(), c.ErrOrStderr()) },
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&o.file, "config", config.Path(), "the node's configuration `FILE`; \"\" stands for the defaults")
	flags.StringVarP(&o.output, "output", "o", outputTable, "form of the output: table, yaml or json")
	return command
}

func (o *configShowOptions) run(stdout, stderr io.Writer) error {
	if o.output != outputTable && o.output != outputYAML && o.output != outputJSON {
		return cli.Usage("--output %q is none of %s", o.output, choices([]string{outputTable, outputYAML, outputJSON}))
	}
	environ := os.Environ()
	c, bad, err := config.ReadOrLastGood(o.file, config.Environment(environ)...)
	if err != nil {
		return err
	}
	file := o.file
	if bad != nil {
		file += config.LastGood
		fmt.Fprintf(stderr, "dxctl: %v; its last good copy is in force, which is shown\n", bad)
	}
	if o.output == outputYAML {
		text, err := config.Marshal(c)
		if err != nil {
			return err
		}
		_, err = stdout.Write(text)
		return err
	}
	origins, err := readOrigins(file)
	if err != nil {
		return err
	}
	settings := origins.settings(c, config.Environment(environ))
	if o.output == outputJSON {
		return printConfigJSON(stdout, file, settings, c)
	}
	return printConfig(stdout, terminal.Of(stdout, os.Getenv), settings, c)
}

// settingReport is a setting and where its value comes from. The names of its
// fields are for scripts, and stay.
type settingReport struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// From is a file's name and line, the name of a variable, "default", or "another key".
	From string `json:"from"`
	// Restart tells that a program must be started anew for a change.
	Restart bool `json:"restart"`
}

// Where a value comes from that nobody has set.
const (
	fromDefault = "default"
	// fromOther: it follows from another one, as assignmentMode from a preset.
	fromOther = "another key"
)

// origins are the values that a file has, and where.
type origins struct {
	file string
	root *yaml.Node // nil without a file
}

// readOrigins reads a file that has been read and checked before, or none.
func readOrigins(file string) (origins, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return origins{}, nil
	}
	if err != nil {
		return origins{}, fmt.Errorf("read configuration: %w", err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil || len(document.Content) == 0 {
		return origins{}, fmt.Errorf("read configuration %s: it has changed just now; try again", file)
	}
	return origins{file, document.Content[0]}, nil
}

// find returns the value of a key such as log.level, nil when the file has none.
func (o origins) find(key string) *yaml.Node {
	node := o.root
	for name := range strings.SplitSeq(key, ".") {
		if node != nil && node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		if node == nil || node.Kind != yaml.MappingNode {
			return nil
		}
		var below *yaml.Node
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				below = node.Content[i+1]
			}
		}
		node = below
	}
	return node
}

// settings returns all of c's. Of those that c does not keep, the file or the
// variable tells.
func (o origins) settings(c config.Config, overrides []config.Override) []settingReport {
	var list []settingReport
	for _, s := range config.Settings() {
		r := settingReport{Key: s.Key, Value: s.Default(), From: fromDefault, Restart: s.Restart}
		if node := o.find(s.Key); node != nil {
			r.Value, r.From = node.Value, fmt.Sprintf("%s:%d", o.file, node.Line)
		}
		for _, override := range overrides {
			if override.Key == s.Key {
				r.Value, r.From = override.Value, override.Origin
			}
		}
		if s.Key != "preset" && s.Key != "replicas" {
			r.Value = s.Value(c)
			if r.From == fromDefault && r.Value != s.Default() {
				r.From = fromOther
			}
		}
		list = append(list, r)
	}
	return list
}

// listsOf returns, as YAML, what of c is no setting of one value.
func listsOf(c config.Config) ([]byte, error) {
	lists := config.Default()
	lists.Resources, lists.RuntimeFiles = c.Resources, c.RuntimeFiles
	lists.ExtraMounts.HostFolders, lists.ExtraMounts.Destinations = c.ExtraMounts.HostFolders, c.ExtraMounts.Destinations
	text, err := config.Marshal(lists)
	if err != nil {
		return nil, err
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, err
	}
	// Without the file's head.
	mapping := node.Content[0]
	mapping.Content = mapping.Content[4:]
	return yaml.Marshal(mapping)
}

func printConfig(stdout io.Writer, to terminal.Terminal, settings []settingReport, c config.Config) error {
	table := terminal.Table{Columns: []terminal.Column{{Title: "KEY"}, {Title: "VALUE", Give: 1, Least: 12}, {Title: "FROM", Give: 2, Least: 12}}}
	for _, s := range settings {
		style := terminal.Plain
		if s.From == fromDefault {
			style = terminal.Dim
		}
		value := s.Value
		if value == "" {
			value = `""`
		}
		table.Add(terminal.Cell{Text: s.Key}, terminal.Cell{Text: value}, terminal.Cell{Text: s.From, Style: style})
	}
	if err := table.Print(stdout, to); err != nil {
		return err
	}
	lists, err := listsOf(c)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\n%s", lists)
	return err
}

func printConfigJSON(stdout io.Writer, file string, settings []settingReport, c config.Config) error {
	text, err := listsOf(c)
	if err != nil {
		return err
	}
	var lists map[string]any
	if err := yaml.Unmarshal(text, &lists); err != nil {
		return err
	}
	asJSON, err := json.Marshal(lists)
	if err != nil {
		return err
	}
	return printAs(stdout, outputJSON, struct {
		File     string          `json:"file"`
		Settings []settingReport `json:"settings"`
		Lists    json.RawMessage `json:"lists"`
	}{file, settings, asJSON})
}
