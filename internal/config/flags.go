package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// Flags are the command-line flags for keys of config.yaml, which take precedence
// over the file. Add them to a command with [Flags.Add].
type Flags []*keyFlag

// flag is a flag for a key of config.yaml.
type flag struct{ name, key, usage string }

func flags() []flag {
	return []flag{
		{"inventory", "inventory", "inventory `FILE` that describes this node's GPUs; without one they are discovered: on Windows, and on Linux with /dev/dxg"},
		{"preset", "preset", "`NAME` of a preset: resources as another device plugin offers them"},
		{"replicas", "replicas", "`NUMBER` of containers that can share a GPU, for rules that set no other"},
		{"injection", "injection", "how GPUs get into containers: runtime or kubelet"},
		{"served-by", "servedBy", "component that adds GPUs to containers if injection is runtime: nri (default on Linux) or shim (default on Windows)"},
		{"log-level", "log.level", "least severe `LEVEL` to log: error, warn, info or debug"},
		{"log-format", "log.format", "log `FORMAT`: text or json"},
		{"metrics-address", "metrics.address", "`HOST:PORT` of the metrics and health endpoints; without one they are disabled"},
		{"fail-on-init-error", "failOnInitError", "exit with an error if there is no GPU at the start, instead of waiting for one"},
	}
}

// Add adds the flags to command, whose shells complete their values.
func (f *Flags) Add(command *cobra.Command) {
	for _, flag := range flags() {
		own := defaultFile()
		value := &keyFlag{key: flag.key}
		value.field, value.limits = fieldOf(&own, flag.key)
		*f = append(*f, value)
		added := command.Flags().VarPF(value, flag.name, "", flag.usage+" (key "+flag.key+")")
		if value.Type() == "bool" {
			added.NoOptDefVal = "true"
		}
		if values := value.limits["enum"]; values != nil {
			// It fails only for a flag that does not exist.
			_ = command.RegisterFlagCompletionFunc(flag.name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// apply sets the keys of the flags that were given.
func (f Flags) apply(d *document, file *File) {
	for _, flag := range f {
		if flag.given {
			d.clear(flag.key) // What the file has there has no effect.
			field, _ := fieldOf(file, flag.key)
			field.Set(flag.field)
		}
	}
}

// keyFlag is the value of a flag. It has the limits of its key.
type keyFlag struct {
	key    string
	field  reflect.Value // of a file of its own
	limits limits
	given  bool
}

// Set implements [pflag.Value].
func (f *keyFlag) Set(text string) (err error) {
	node := yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if b, err := strconv.ParseBool(text); err == nil && f.Type() == "bool" {
		node.Value = strconv.FormatBool(b)
	}
	if f.key == "inventory" && text != "" {
		if node.Value, err = filepath.Abs(text); err != nil {
			return err
		}
	}
	f.given = true
	return decodeScalar(&node, f.field, f.limits)
}

func (f *keyFlag) String() string { return fmt.Sprint(f.field) }

// Type implements [pflag.Value].
func (f *keyFlag) Type() string { return f.field.Kind().String() }

// fieldOf returns the field of file that has the key at path, and its limits.
func fieldOf(file *File, path string) (v reflect.Value, l limits) {
	v = reflect.ValueOf(file).Elem()
	for name := range strings.SplitSeq(path, ".") {
		for _, key := range keysOf(v.Type()) {
			if key.name == name {
				v, l = v.FieldByIndex(key.field), key.limits
				break
			}
		}
	}
	return v, l
}
