package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// pluginConfig is the configuration of one of TensorWorks' or Microsoft's plugins:
// plugins/internal/plugin/plugin_configuration.go in
// https://github.com/TensorWorks/DirectX-Device-Plugins at 5862bd7.
type pluginConfig struct {
	multitenancy                         uint64
	includeIntegrated, includeDetachable bool
	// additionalMounts and additionalMountsWow64 are files by vendor.
	additionalMounts, additionalMountsWow64 map[string][]policy.AddedFile
}

// settings are the values of a plugin's keys, in lower case.
type settings map[string]*yaml.Node

func settingsOf(node *yaml.Node) settings {
	var values map[string]yaml.Node
	s := settings{}
	if node.Decode(&values) == nil {
		for key, value := range values {
			s[strings.ToLower(key)] = &value
		}
	}
	return s
}

func scalar(value string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: value} }

// isSetting reports whether the plugins have a setting with this name, in any case.
func isSetting(key string) bool {
	names := []string{"multitenancy", "includeintegrated", "includedetachable", "additionalmounts", "additionalmountswow64"}
	return slices.Contains(names, strings.ToLower(key))
}

// resourceKinds returns the kind of GPUs of each plugin, by the plugin's name.
func resourceKinds() map[string]string {
	return map[string]string{"wddm": "display", "mcdm": "compute"}
}

// decode returns the configuration, and notes on settings that are not converted. The plugins read
// numbers and booleans from strings, too.
func (s settings) decode(name string) (p pluginConfig, notes []string, err error) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		value := s[key]
		if value.ShortTag() == "!!null" {
			continue
		}
		switch key {
		case "multitenancy":
			p.multitenancy, err = strconv.ParseUint(value.Value, 0, 32)
		case "includeintegrated":
			p.includeIntegrated, err = strconv.ParseBool(value.Value)
		case "includedetachable":
			p.includeDetachable, err = strconv.ParseBool(value.Value)
		case "additionalmounts":
			err = value.Decode(&p.additionalMounts)
		case "additionalmountswow64":
			err = value.Decode(&p.additionalMountsWow64)
		default:
			var unknown any
			err = value.Decode(&unknown)
			notes = append(notes, unconvertedNotes(name+"."+key, unknown)...)
		}
		if err != nil {
			return p, nil, fmt.Errorf("settings of the %s plugin: %w", name, err)
		}
	}
	return p, notes, nil
}

// matchUnless returns the condition with which a resource excludes GPUs, nil if they are included.
func matchUnless(included bool) *bool {
	if included {
		return nil
	}
	return new(false)
}

// convertTensorWorks converts DaemonSets with their ConfigMaps. If there is no DaemonSet, it converts
// the settings of both plugins: a configuration file, a ConfigMap, or environment variables in lines
// NAME=VALUE.
func convertTensorWorks(documents []manifest) (f convertedConfig, notes []string, err error) {
	plugins, notes, err := deployedPlugins(documents)
	if err == nil && len(plugins) == 0 {
		plugins, err = bothPlugins(documents)
	}
	if err != nil {
		return f, nil, err
	}
	f.AssignmentMode = policy.AssignByPath
	f.RuntimeFiles = map[string]policy.RuntimeFiles{}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		p, unknown, err := plugins[name].decode(name)
		if err != nil {
			return f, nil, err
		}
		kind := resourceKinds()[name]
		f.Resources = append(f.Resources, policy.ResourceRule{
			Name: "directx.microsoft.com/" + kind, Replicas: max(int(p.multitenancy), 1),
			Match: policy.Match{Kind: kind, Integrated: matchUnless(p.includeIntegrated), Detachable: matchUnless(p.includeDetachable)},
		})
		if len(p.additionalMounts)+len(p.additionalMountsWow64) > 0 {
			notes = append(notes, fmt.Sprintf("The files of the %s plugin (runtimeFiles) are added to all GPUs of the vendor.", name))
		}
		f.addRuntimeFiles(p.additionalMounts, "")
		f.addRuntimeFiles(p.additionalMountsWow64, policy.SysWOW64)
		notes = append(notes, unknown...)
	}
	return f, notes, nil
}

// addRuntimeFiles adds files for a directory of containers. The plugins compare the vendors with
// those of WMI in lower case.
func (f *convertedConfig) addRuntimeFiles(byVendor map[string][]policy.AddedFile, directory string) {
	for _, key := range slices.Sorted(maps.Keys(byVendor)) {
		vendor := strings.ToLower(key)
		for manufacturer, name := range map[string]string{"advanced micro devices": "amd", "intel": "intel", "qualcomm": "qualcomm"} {
			if strings.HasPrefix(vendor, manufacturer) {
				vendor = name
			}
		}
		files := f.RuntimeFiles[vendor]
		for _, a := range byVendor[key] {
			if a.Directory = directory; !slices.Contains(files.Add, a) {
				files.Add = append(files.Add, a)
			}
		}
		f.RuntimeFiles[vendor] = files
	}
}

// deployedPlugins returns the settings of each plugin that documents deploy.
func deployedPlugins(documents []manifest) (plugins map[string]settings, notes []string, err error) {
	plugins = map[string]settings{}
	for _, d := range documents {
		spec := d.Spec.Template.Spec
		for _, c := range spec.Containers {
			name := "wddm"
			if strings.Contains(c.Name+c.Image, "mcdm") {
				name = "mcdm"
			}
			if !strings.Contains(c.Name+c.Image, name) {
				continue
			}
			env, err := c.environment(documents)
			if err != nil {
				return nil, nil, err
			}
			if plugins[name], err = pluginSettings(name, settings{}, env, documents); err != nil {
				return nil, nil, err
			}
			for _, key := range []string{"nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"} {
				if spec.Other[key] != nil {
					notes = append(notes, fmt.Sprintf("%s of %s is a value of the Helm chart.", key, d.Metadata.Name))
				}
			}
		}
	}
	return plugins, notes, nil
}

// bothPlugins returns the settings that documents have for both plugins.
func bothPlugins(documents []manifest) (plugins map[string]settings, err error) {
	both, env := settings{}, map[string]string{}
	for _, d := range documents {
		switch {
		case d.Kind == "ConfigMap":
			maps.Copy(env, d.Data)
		case d.root.Kind == yaml.ScalarNode:
			for line := range strings.FieldsSeq(d.root.Value) {
				name, value, _ := strings.Cut(line, "=")
				env[name] = value
			}
		case d.Kind == "":
			maps.Copy(both, settingsOf(d.root))
		}
	}
	for key, value := range env {
		if isSetting(key) {
			both[strings.ToLower(key)] = scalar(value)
		}
	}
	plugins = map[string]settings{}
	found := false
	for name := range resourceKinds() {
		if plugins[name], err = pluginSettings(name, both, env, documents); err != nil {
			return nil, err
		}
		for key := range plugins[name] {
			found = found || isSetting(key)
		}
	}
	if !found {
		return nil, fmt.Errorf("%w of TensorWorks' or Microsoft's device plugins: want their DaemonSets and ConfigMaps, a configuration file, or environment variables",
			errNotConfiguration)
	}
	return plugins, nil
}

// pluginSettings returns base with the settings of a plugin: those of its configuration file, which
// is in a ConfigMap, and those of its environment variables, which take precedence.
func pluginSettings(name string, base settings, env map[string]string, documents []manifest) (settings, error) {
	s := maps.Clone(base)
	prefix := strings.ToUpper(name) + "_DEVICE_PLUGIN_"
	configFile := env[prefix+"CONFIG_FILE"]
	file := winpath.Base(cmp.Or(configFile, name+".yaml"))
	found := false
	for _, d := range documents {
		if text, ok := d.Data[file]; ok {
			var root yaml.Node
			if err := yaml.Unmarshal([]byte(text), &root); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			maps.Copy(s, settingsOf(&root))
			found = true
		}
	}
	if configFile != "" && !found {
		return nil, fmt.Errorf("no ConfigMap has %s: add it to the file, or convert that file alone", file)
	}
	for key, value := range env {
		if key, ok := strings.CutPrefix(key, prefix); ok && value != "" && key != "CONFIG_FILE" {
			s[strings.ToLower(strings.ReplaceAll(key, "_", ""))] = scalar(value)
		}
	}
	return s, nil
}

func (c container) environment(documents []manifest) (map[string]string, error) {
	env := map[string]string{}
	for _, from := range c.EnvFrom {
		data := configMap(documents, from.ConfigMapRef.Name)
		if data == nil {
			return nil, missingConfigMap(from.ConfigMapRef.Name)
		}
		maps.Copy(env, data)
	}
	for _, e := range c.Env {
		env[e.Name] = e.Value
		if ref := e.ValueFrom.ConfigMapKeyRef; ref.Name != "" {
			value, ok := configMap(documents, ref.Name)[ref.Key]
			if !ok {
				return nil, missingConfigMap(ref.Name)
			}
			env[e.Name] = value
		}
	}
	return env, nil
}

func missingConfigMap(name string) error {
	return fmt.Errorf("a value is in ConfigMap %[1]s: add it to the file, as 'kubectl get configmap %[1]s -o yaml' prints it, after a line ---", name)
}
