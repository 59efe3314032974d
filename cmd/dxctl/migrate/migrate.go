// Package migrate converts configurations of other device plugins to config.yaml.
package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// The plugins whose configurations can be converted.
const (
	TensorWorks = "tensorworks"
	NVIDIA      = "nvidia"
)

// errNotConfiguration means that a file has no settings of the plugin.
var errNotConfiguration = errors.New("not a configuration")

// Convert returns the text of a config.yaml that corresponds to data, the configuration of a plugin.
// It begins with a comment for each setting without a counterpart.
func Convert(from string, data []byte) ([]byte, error) {
	documents, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotConfiguration, err)
	}
	convert, nodeOS := convertTensorWorks, "windows"
	if from == NVIDIA {
		convert, nodeOS = convertNVIDIA, "linux"
	}
	converted, notes, err := convert(documents)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, note := range notes {
		fmt.Fprintf(&text, "# %s\n", errlog.OneLine(note)) // The names of keys can have line breaks.
	}
	converted.APIVersion, converted.Kind = config.APIVersion, config.Kind
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(converted); err != nil {
		return nil, err
	}
	if err := config.Check("converted", text.Bytes(), nodeOS); err != nil {
		return nil, fmt.Errorf("the result is not valid: %w", err)
	}
	return text.Bytes(), nil
}

// Detect returns the plugin that a configuration is for, "" if there is none.
func Detect(data []byte) string {
	for _, from := range []string{TensorWorks, NVIDIA} {
		if _, err := Convert(from, data); !errors.Is(err, errNotConfiguration) {
			return from
		}
	}
	return ""
}

// convertedConfig has the keys of config.yaml that [Convert] writes.
type convertedConfig struct {
	APIVersion      string                         `yaml:"apiVersion"`
	Kind            string                         `yaml:"kind"`
	AssignmentMode  policy.Assignment              `yaml:"assignmentMode,omitempty"`
	FailOnInitError *bool                          `yaml:"failOnInitError,omitempty"`
	Resources       []policy.ResourceRule          `yaml:"resources"`
	RuntimeFiles    map[string]policy.RuntimeFiles `yaml:"runtimeFiles,omitempty"`
}

// manifest is a YAML document, with the keys of the Kubernetes objects that can have settings.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string // of a ConfigMap
	Items    []yaml.Node       // of a List, as kubectl get prints
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []container
				Other      map[string]any `yaml:",inline"`
			}
		}
	}
	root *yaml.Node
}

type container struct {
	Name, Image string
	Env         []struct {
		Name, Value string
		ValueFrom   struct {
			ConfigMapKeyRef struct{ Name, Key string } `yaml:"configMapKeyRef"`
		} `yaml:"valueFrom"`
	}
	EnvFrom []struct {
		ConfigMapRef struct{ Name string } `yaml:"configMapRef"`
	} `yaml:"envFrom"`
}

// parse returns the documents of a file, and the items of lists after them.
func parse(data []byte) (documents []manifest, err error) {
	var roots []*yaml.Node
	for decoder := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		roots = append(roots, root.Content[0])
	}
	for n := 0; n < len(roots); n++ {
		d := manifest{root: roots[n]}
		if d.root.Kind == yaml.MappingNode {
			if err := d.root.Decode(&d); err != nil {
				return nil, err
			}
		}
		documents = append(documents, d)
		for i := range d.Items {
			roots = append(roots, &d.Items[i])
		}
	}
	return documents, nil
}

func configMap(documents []manifest, name string) map[string]string {
	for _, d := range documents {
		if d.Kind == "ConfigMap" && d.Metadata.Name == name {
			return d.Data
		}
	}
	return nil
}

// unconvertedNotes returns a note for each setting in a value that is not converted. A setting that
// is off or empty needs no note.
func unconvertedNotes(path string, value any) (notes []string) {
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			notes = append(notes, unconvertedNotes(strings.TrimPrefix(path+"."+key, "."), value[key])...)
		}
		return notes
	case []any:
		if len(value) == 0 {
			return nil
		}
	default:
		if value == nil || value == false || value == "" || value == "none" {
			return nil
		}
	}
	return []string{path + " has no counterpart."}
}
