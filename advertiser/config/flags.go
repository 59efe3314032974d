package config

import (
	"strconv"
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

// ReadFlags returns the keys that are set by flags as a part of config.yaml, for [Compiler].
func ReadFlags(flags *pflag.FlagSet) (map[string]any, error) {
	values := map[string]any{}
	flags.Visit(func(flag *pflag.Flag) {
		var value any = flag.Value.String()
		switch flag.Value.Type() {
		case "int":
			value, _ = strconv.ParseFloat(flag.Value.String(), 64) // package json decodes numbers so
		case "bool":
			value = flag.Value.String() == "true"
		}
		if path, ok := flagKeys()[flag.Name]; ok {
			section, key, nested := strings.Cut(path, ".")
			if nested {
				value = map[string]any{key: value}
			}
			merge(values, map[string]any{section: value})
		}
	})
	document := map[string]any{"apiVersion": APIVersion, "kind": Kind}
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
