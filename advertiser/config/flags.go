package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/policy"
)

// Flags are the values of the command-line flags for keys of config.yaml, by key. They take
// precedence over the file. Add the flags to a command with [Flags.Add].
type Flags map[string]reflect.Value

// Add adds the flags to command. Shells complete their values. f has the values when the command runs.
func (f *Flags) Add(command *cobra.Command) {
	*f = Flags{}
	for _, flag := range []struct{ name, key, usage string }{
		{"inventory", "inventory",
			"inventory `FILE` that describes this node's GPUs; without one they are discovered: on Windows, and on Linux with /dev/dxg"},
		{"preset", "preset", "`NAME` of a preset: resources as another device plugin offers them"},
		{"replicas", "replicas", "`NUMBER` of containers that can share a GPU, for rules that set no other"},
		{"injection", "injection", "what adds GPUs to containers: auto, nri, shim or kubelet"},
		{"log-level", "log.level", "least severe `LEVEL` to log: error, warn, info or debug"},
		{"log-format", "log.format", "log `FORMAT`: text or json"},
		{"metrics-address", "metrics.address", "`HOST:PORT` of the metrics and health endpoints; without one they are disabled"},
		{"fail-on-init-error", "failOnInitError", "exit with an error if there is no GPU at the start, instead of waiting for one"},
	} {
		value := newKeyFlag(*f, flag.key)
		added := command.Flags().VarPF(value, flag.name, "", flag.usage+" (key "+flag.key+")")
		if value.Type() == "bool" {
			added.NoOptDefVal = "true"
		}
		if values := value.limits.values(); values != nil {
			// It fails only for a flag that does not exist.
			_ = command.RegisterFlagCompletionFunc(flag.name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// texts returns the flags that are set, as [policy.CompiledFrom] has them.
func (f Flags) texts() (texts []string) {
	for key, value := range f {
		texts = append(texts, fmt.Sprintf("%s=%v", key, value))
	}
	slices.Sort(texts)
	return texts
}

// RestoreFlags sets the flags that [Flags.Add] has added to command to those of an earlier compilation.
func RestoreFlags(command *cobra.Command, from policy.CompiledFrom) (err error) {
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		f, ok := flag.Value.(*keyFlag)
		for _, text := range from.Flags {
			if key, value, _ := strings.Cut(text, "="); ok && key == f.key {
				err = errors.Join(err, f.Set(value))
			}
		}
	})
	return err
}

// keyFlag is a flag for a key of config.yaml, with the type and the limits of the key.
type keyFlag struct {
	flags  Flags
	key    string
	value  reflect.Value // the default until the flag is set
	limits limits
}

func newKeyFlag(flags Flags, path string) *keyFlag {
	defaults := defaultConfiguration()
	f := &keyFlag{flags: flags, key: path, value: reflect.ValueOf(&defaults).Elem()}
	for name := range strings.SplitSeq(path, ".") {
		keys := keysOf(f.value.Type())
		k := keys[slices.IndexFunc(keys, func(k key) bool { return k.name == name })]
		f.value, f.limits = f.value.FieldByIndex(k.index), k.limits
	}
	return f
}

// Set implements [pflag.Value].
func (f *keyFlag) Set(text string) (err error) {
	if b, err := strconv.ParseBool(text); err == nil && f.Type() == "bool" {
		text = strconv.FormatBool(b)
	}
	if f.key == "inventory" && text != "" {
		if text, err = filepath.Abs(text); err != nil {
			return err
		}
	}
	f.flags[f.key] = f.value
	return decodeScalar(&yaml.Node{Kind: yaml.ScalarNode, Value: text}, f.value, f.limits)
}

func (f *keyFlag) String() string { return fmt.Sprint(f.value) }

// Type implements [pflag.Value].
func (f *keyFlag) Type() string { return f.value.Kind().String() }
