package config

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// flagKeys returns the keys of config.yaml that flags set, by the flag.
func flagKeys() map[string]string {
	return map[string]string{
		"inventory": "inventory", "preset": "preset", "replicas": "replicas", "injection": "injection",
		"log-level": "log.level", "log-format": "log.format", "metrics-address": "metrics.address",
		"fail-on-init-error": "failOnInitError",
	}
}

// AddFlags adds flags for keys of config.yaml. [ReadFlags] returns their values.
func AddFlags(flags *pflag.FlagSet) {
	flags.String("inventory", "", "inventory `FILE` that describes this node's GPUs; without one they are discovered: on Windows, and on Linux with /dev/dxg")
	flags.String("preset", "", "`NAME` of a preset: resources as another device plugin offers them")
	flags.Int("replicas", 1, "`NUMBER` of containers that can share a GPU, for rules that set no other")
	flags.String("injection", "auto", "what adds GPUs to containers: auto, nri, shim or kubelet")
	flags.String("log-level", "info", "least severe `LEVEL` to log: error, warn, info or debug")
	flags.String("log-format", "text", "log `FORMAT`: text or json")
	flags.String("metrics-address", "", "`HOST:PORT` of the metrics and health endpoints; without one they are disabled")
	flags.Bool("fail-on-init-error", false, "exit with an error if there is no GPU at the start, instead of waiting for one")
	for name, key := range flagKeys() {
		flags.Lookup(name).Usage += " (key " + key + ")"
	}
}

// ReadFlags returns the keys that are set by flags as a part of config.yaml, for [Compiler]; nil if none
// is set.
func ReadFlags(flags *pflag.FlagSet) (values map[string]any, err error) {
	document := map[string]any{"apiVersion": APIVersion, "kind": Kind}
	flags.Visit(func(flag *pflag.Flag) {
		path, ok := flagKeys()[flag.Name]
		if !ok {
			return
		}
		text := flag.Value.String()
		var value any = text
		switch {
		case flag.Value.Type() != "string":
			_ = json.Unmarshal([]byte(text), &value) // It is a number, true or false.
		case flag.Name == "inventory" && text != "":
			value, _ = filepath.Abs(text) // It fails only without a working directory.
		}
		if section, key, nested := strings.Cut(path, "."); nested {
			path, value = section, map[string]any{key: value}
		}
		if values == nil {
			values = map[string]any{}
		}
		merge(values, map[string]any{path: value})
	})
	merge(document, values)
	return values, validate(document, configSchema)
}

// merge sets the keys of over in a document, if it is a mapping.
func merge(document any, over map[string]any) {
	mapping, ok := document.(map[string]any)
	if !ok {
		return
	}
	for key, value := range over {
		section, nested := value.(map[string]any)
		if nested && mapping[key] != nil {
			merge(mapping[key], section)
		} else {
			mapping[key] = value
		}
	}
}
