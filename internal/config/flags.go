package config

import (
	"path/filepath"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Flags are the command-line flags for keys of config.yaml, which take precedence
// over the file. Add them to a command with [Flags.Add].
type Flags struct{ set *pflag.FlagSet }

// FlagError is the error of a flag with an invalid value.
type FlagError struct{ error }

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

// Add adds the flags to command, whose shells complete their values. [Compiler.Compile]
// validates them.
func (f *Flags) Add(command *cobra.Command) {
	set, defaults := command.Flags(), defaultFile()
	f.set = set
	for _, flag := range flags() {
		usage := flag.usage + " (key " + flag.key + ")"
		value, limits := fieldOf(&defaults, flag.key)
		switch value.Kind() {
		case reflect.Int:
			set.Int(flag.name, int(value.Int()), usage)
		case reflect.Bool:
			set.Bool(flag.name, value.Bool(), usage)
		default:
			set.String(flag.name, value.String(), usage)
		}
		if values := limits["enum"]; values != nil {
			// It fails only for a flag that does not exist.
			_ = command.RegisterFlagCompletionFunc(flag.name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// apply decodes the flags that were given into their keys of file, and returns their names
// by these keys.
func (f Flags) apply(d *document, file *File) (map[string]string, error) {
	given := map[string]string{}
	for _, flag := range flags() {
		if f.set == nil || !f.set.Changed(flag.name) {
			continue
		}
		set := f.set.Lookup(flag.name).Value
		value := set.String()
		if flag.key == "inventory" && value != "" {
			var err error
			if value, err = filepath.Abs(value); err != nil {
				return nil, err
			}
		}
		d.clear(flag.key) // What the file has there has no effect.
		field, limits := fieldOf(file, flag.key)
		tag := map[string]string{"int": "!!int", "bool": "!!bool", "string": "!!str"}[set.Type()]
		d.check(flag.key, decodeScalar(&yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, field, limits))
		given[flag.key] = flag.name
	}
	return given, nil
}

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
