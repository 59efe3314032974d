package config

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"directx-nri/internal/strictyaml"
)

// Program is one of the programs that take settings by flags, or several.
type Program uint8

// The programs.
const (
	Advertiser Program = 1 << iota
	Plugin

	daemons = Advertiser | Plugin
	noFlag  = Program(0)
)

// Type is what a setting's value is.
type Type string

// The types of settings.
const (
	// TextValue is one line of text.
	TextValue Type = "text"
	// PathValue is an absolute path, of a file, a folder or a socket.
	PathValue Type = "path"
	// NumberValue is a whole number.
	NumberValue Type = "number"
	// SwitchValue is true or false.
	SwitchValue Type = "switch"
	// ChoiceValue is one of a few words.
	ChoiceValue Type = "choice"
)

// Setting is one scalar of the configuration: a key of config.yaml, a variable of
// the environment, and a flag of the programs that use it.
type Setting struct {
	// Key is the key's path, for example log.level.
	Key string
	// Flag is the flag's name without dashes, "" where there is none.
	Flag string
	// Programs have the flag.
	Programs Program
	// Usage says in a line what the setting is.
	Usage string
	Type  Type
	// Choices are the values of a [ChoiceValue].
	Choices []string
	// Min and Max bound a [NumberValue].
	Min, Max int
	// Restart tells that a program must be started anew for a change.
	Restart bool
	// Example is a value in the documentation.
	Example string

	empty bool // the value may be ""
	check func(string) error
	at    func(*draft) field
}

// field is where a setting's value is kept, as text.
type field struct {
	get func() string
	set func(string)
}

// Variable returns the name of the setting's variable: DIRECTX_NRI_LOG_LEVEL for
// log.level.
func (s Setting) Variable() string {
	var b strings.Builder
	b.WriteString(variablePrefix)
	previous := '.'
	for _, r := range s.Key {
		switch {
		case r == '.':
			b.WriteByte('_')
		case unicode.IsUpper(r) && unicode.IsLower(previous):
			b.WriteByte('_')
			b.WriteRune(r)
		default:
			b.WriteRune(unicode.ToUpper(r))
		}
		previous = r
	}
	return b.String()
}

// Default returns the setting's value on this system when nobody sets it.
func (s Setting) Default() string {
	d := newDraft()
	d.finish()
	return s.at(&d).get()
}

// Value returns the setting's value in c, which keeps no preset and no replicas:
// those are part of its rules.
func (s Setting) Value(c Config) string {
	d := draft{Config: c}
	return s.at(&d).get()
}

// parse checks text and returns it as it is kept.
func (s Setting) parse(text string) (string, error) {
	switch {
	case text == "" && s.empty:
		return "", nil
	case text == "":
		return "", fmt.Errorf("is empty; write a value or leave it out")
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", fmt.Errorf("%s has a line break or a control character; write one line of text", strictyaml.Quote(text))
	}
	switch s.Type {
	case PathValue:
		if !filepath.IsAbs(text) {
			return "", fmt.Errorf("%s is not an absolute path; begin it with %s", strictyaml.Quote(text), rootOfThisSystem())
		}
	case NumberValue:
		n, err := inRange(text, s.Min, s.Max)
		return strconv.Itoa(n), err
	case SwitchValue:
		if text != "true" && text != "false" {
			return "", fmt.Errorf("%s is neither true nor false", strictyaml.Quote(text))
		}
	case ChoiceValue:
		if !slices.Contains(s.Choices, text) {
			return "", fmt.Errorf("%s is none of %s", strictyaml.Quote(text), strings.Join(s.Choices, ", "))
		}
	}
	if s.check != nil {
		return text, s.check(text)
	}
	return text, nil
}

// read returns v's text, as far as its YAML type goes.
func (s Setting) read(v strictyaml.Value) (string, bool) {
	switch s.Type {
	case NumberValue:
		return v.Number()
	case SwitchValue:
		is, ok := v.Bool()
		return strconv.FormatBool(is), ok
	case ChoiceValue:
		// Tools that speak YAML 1.1 take on and off for these.
		if slices.Contains(s.Choices, "off") && !v.IsString() {
			v.Fail("must be one of %s, not %s; write it in quotes", strings.Join(s.Choices, ", "), v.Describe())
			return "", false
		}
	}
	if s.Key == "containerd.nriIndex" {
		return v.Literal() // 50 is a number to YAML.
	}
	return v.String()
}

// Settings returns all settings, in the order of the documentation.
func Settings() []Setting {
	return []Setting{
		{
			Key: "inventory", Flag: "inventory", Programs: daemons, Type: PathValue, empty: true, Restart: true, Example: "/etc/directx-nri/gpus.yaml",
			Usage: `inventory file that describes this node's GPUs; on Windows "" finds them`,
			at:    func(d *draft) field { return text(&d.Inventory) },
		}, {
			Key: "preset", Flag: "preset", Programs: daemons, Type: ChoiceValue, empty: true, Choices: presetNames(), Example: "tensorworks",
			Usage: "resources as another system has them, in place of rules of one's own",
			at:    func(d *draft) field { return text(&d.preset) },
		}, {
			Key: "replicas", Flag: "replicas", Programs: Advertiser, Type: NumberValue, Min: 1, Max: MaxReplicas, Example: "4",
			Usage: "how many containers may share a GPU, 1 to 1024, where a rule does not say",
			at:    func(d *draft) field { return number(&d.replicas) },
		}, {
			Key: "assignmentMode", Flag: "assignment-mode", Programs: daemons, Type: ChoiceValue, Example: "class-guid",
			Choices: []string{string(AssignAuto), string(AssignByPath), string(AssignByClass)},
			Usage:   "how containers are given devices: location-path for single ones, class-guid for all of the node, or auto for what Windows can do",
			at:      func(d *draft) field { return text(&d.Assignment) },
		}, {
			Key: "injection", Flag: "injection", Programs: daemons, Type: ChoiceValue, Restart: true, Example: "kubelet",
			Choices: []string{string(InjectByRuntime), string(InjectByKubelet)},
			Usage:   "who gives containers their GPUs: runtime, the plugin or the shim, or kubelet, where containerd may not be configured",
			at:      func(d *draft) field { return text(&d.Injection) },
		}, {
			Key: "servedBy", Flag: "served-by", Programs: Advertiser, Type: ChoiceValue, Choices: []string{ServedByNRI, ServedByShim}, Restart: true, Example: "shim",
			Usage: "with injection by the runtime, who gives containers their GPUs: nri, the plugin, or shim, the runtime shim",
			at:    func(d *draft) field { return text(&d.ServedBy) },
		}, {
			Key: "visibilityHints", Flag: "visibility-hints", Programs: daemons, Type: ChoiceValue, Choices: []string{"on", "off"}, Example: "off",
			Usage: "on tells containers by variables which GPUs are theirs",
			at:    func(d *draft) field { return onOff(&d.VisibilityHints, "on", "off") },
		}, {
			Key: "extraMounts.sources", Flag: "extra-mounts", Programs: daemons, Type: ChoiceValue, Example: "off",
			Choices: []string{string(MountNothing), string(MountDriverStore), string(MountHostFolders)},
			Usage:   "where files may come from that pods ask for by annotation",
			at:      func(d *draft) field { return text(&d.ExtraMounts.Sources) },
		}, {
			Key: "extraMounts.max", Flag: "extra-mounts-max", Programs: daemons, Type: NumberValue, Min: 1, Max: maxExtraMounts, Example: "4",
			Usage: "how many such files a container may have",
			at:    func(d *draft) field { return number(&d.ExtraMounts.Max) },
		}, {
			Key: "failOnInitError", Flag: "fail-on-init-error", Programs: Advertiser, Type: SwitchValue, Restart: true, Example: "true",
			Usage: "end with an error when there is no GPU at the start, instead of waiting for one",
			at:    func(d *draft) field { return onOff(&d.FailOnInitError, "true", "false") },
		}, {
			Key: "stateDir", Flag: "state-dir", Programs: daemons, Type: PathValue, Restart: true, Example: "/srv/directx-nri",
			Usage: "folder of the allocation records, the same for all programs",
			at:    func(d *draft) field { return text(&d.StateDir) },
		}, {
			Key: "runtimeDir", Flag: "runtime-dir", Programs: daemons, Type: PathValue, Restart: true, Example: "/run/gpus",
			Usage: "folder of the socket by which the advertiser sees that the plugin is there, the same for both",
			at:    func(d *draft) field { return text(&d.RuntimeDir) },
		}, {
			Key: "hostRoot", Flag: "host-root", Programs: daemons, Type: PathValue, empty: runtime.GOOS == "windows", Restart: true, Example: "/host",
			Usage: "where the node's root directory is mounted, for a program that runs in a container on Linux",
			at:    func(d *draft) field { return text(&d.HostRoot) },
		}, {
			Key: "containerOS", Flag: "container-os", Programs: daemons, Type: ChoiceValue, Choices: []string{"windows", "linux"}, Restart: true, Example: "windows",
			Usage: "operating system of the node's containers, for simulated nodes: windows or linux",
			at:    func(d *draft) field { return text(&d.ContainerOS) },
		}, {
			Key: "kubelet.devicePluginDir", Flag: "kubelet-dir", Programs: Advertiser, Type: PathValue, Restart: true, Example: "/var/lib/kubelet/device-plugins",
			Usage: "the kubelet's folder for device plugins",
			at:    func(d *draft) field { return text(&d.Kubelet.DevicePlugins) },
		}, {
			Key: "kubelet.podResourcesSocket", Flag: "pod-resources-socket", Programs: Advertiser, Type: PathValue, Restart: true, Example: "/var/lib/kubelet/pod-resources/kubelet.sock",
			Usage: "the kubelet's PodResources socket or named pipe, to see which pods hold GPUs",
			at:    func(d *draft) field { return text(&d.Kubelet.PodResources) },
		}, {
			Key: "containerd.nriSocket", Flag: "nri-socket", Programs: daemons, Type: PathValue, empty: true, Restart: true, Example: "/var/run/nri/nri.sock",
			Usage: `containerd's NRI socket; with "" the advertiser does without its guard, which refuses the start of containers whose GPU the plugin could not add`,
			at:    func(d *draft) field { return text(&d.Containerd.NRISocket) },
		}, {
			Key: "containerd.nriIndex", Flag: "nri-index", Programs: Plugin, Type: TextValue, check: checkIndex, Restart: true, Example: "'50'",
			Usage: "place among the NRI plugins, 00 to 99: lower ones are asked first",
			at:    func(d *draft) field { return text(&d.Containerd.NRIIndex) },
		}, {
			Key: "containerd.criSocket", Flag: "cri-socket", Programs: daemons, Type: PathValue, Restart: true, Example: "/run/containerd/containerd.sock",
			Usage: "containerd's CRI socket, to stop containers that were started without their GPU, and to see that it starts containers by the shim",
			at:    func(d *draft) field { return text(&d.Containerd.CRISocket) },
		}, {
			Key: "shim.runtime", Programs: noFlag, Type: TextValue, empty: true, check: checkShimRuntime, Example: "containerd-shim-runc-v2",
			Usage: `the real shim that ours runs: an absolute path, or a file name that is looked for beside ours and on PATH; "" is the system's usual one`,
			at:    func(d *draft) field { return text(&d.Shim.Runtime) },
		}, {
			Key: "shim.log", Programs: noFlag, Type: PathValue, Example: "/var/log/directx-shim.log",
			Usage: "the file that the runtime shim tells in what it did; shim.log in the state folder when nothing is set",
			at:    func(d *draft) field { return text(&d.Shim.Log) },
		}, {
			Key: "log.level", Flag: "log-level", Programs: daemons, Type: ChoiceValue, Choices: []string{"error", "warn", "info", "debug"}, Example: "debug",
			Usage: "least important messages that are logged: error, warn, info or debug",
			at:    func(d *draft) field { return text(&d.Log.Level) },
		}, {
			Key: "log.format", Flag: "log-format", Programs: daemons, Type: ChoiceValue, Choices: []string{"text", "json"}, Example: "json",
			Usage: "form of the log on standard error: text or json",
			at:    func(d *draft) field { return text(&d.Log.Format) },
		}, {
			Key: "metrics.address", Flag: "metrics-address", Programs: Advertiser, Type: TextValue, empty: true, check: checkAddress, Restart: true, Example: "127.0.0.1:9400",
			Usage: `address, host:port, that the advertiser serves metrics and health at; "" serves none`,
			at:    func(d *draft) field { return text(&d.MetricsAddress) },
		}, {
			Key: "metrics.pluginAddress", Flag: "metrics-address", Programs: Plugin, Type: TextValue, empty: true, check: checkAddress, Restart: true, Example: "127.0.0.1:9401",
			Usage: `address, host:port, that the NRI plugin serves metrics and health at; "" serves none`,
			at:    func(d *draft) field { return text(&d.PluginMetricsAddress) },
		},
	}
}

func text[T ~string](p *T) field {
	return field{get: func() string { return string(*p) }, set: func(s string) { *p = T(s) }}
}

func number(p *int) field {
	return field{get: func() string { return strconv.Itoa(*p) }, set: func(s string) {
		// It has passed the check.
		*p, _ = strconv.Atoi(s)
	}}
}

func onOff(p *bool, on, off string) field {
	return field{get: func() string {
		if *p {
			return on
		}
		return off
	}, set: func(s string) { *p = s == on }}
}

// Override is a setting that counts more than the configuration file.
type Override struct {
	// Origin names it to a person: "--log-level" or "DIRECTX_NRI_LOG_LEVEL".
	Origin string
	// Key is the setting's.
	Key string
	// Value is the setting's text.
	Value string
}

// OverrideError is what is wrong with an [Override].
type OverrideError struct {
	// Origin is the override's.
	Origin string
	Err    error
}

func (e *OverrideError) Error() string { return e.Origin + ": " + e.Err.Error() }

// Unwrap returns what is wrong.
func (e *OverrideError) Unwrap() error { return e.Err }

// variablePrefix begins the variables of all settings.
const variablePrefix = "DIRECTX_NRI_"

// Environment returns the settings that environ, a list of NAME=value, has.
// A variable without a value is as good as none, and others that begin with our
// prefix are not ours: Kubernetes makes such for a Service named directx-nri.
func Environment(environ []string) []Override {
	var overrides []Override
	var byVariable map[string]string
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if value == "" || !strings.HasPrefix(name, variablePrefix) {
			continue
		}
		if byVariable == nil {
			byVariable = map[string]string{}
			for _, s := range Settings() {
				byVariable[s.Variable()] = s.Key
			}
		}
		if key, ok := byVariable[name]; ok {
			overrides = append(overrides, Override{Origin: name, Key: key, Value: value})
		}
	}
	return overrides
}

// WithoutEnvironment returns environ without what [Environment] finds in it.
func WithoutEnvironment(environ []string) []string {
	ours := Environment(environ)
	return slices.DeleteFunc(slices.Clone(environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.ContainsFunc(ours, func(o Override) bool { return o.Origin == name })
	})
}

// KeepUntilRestart returns next with the values of before for all settings that
// take a restart, and the keys of those that differ.
func KeepUntilRestart(next, before Config) (inForce Config, keys []string) {
	d, old := draft{Config: next}, draft{Config: before}
	for _, s := range Settings() {
		if want, have := s.at(&d).get(), s.at(&old).get(); s.Restart && want != have {
			s.at(&d).set(have)
			keys = append(keys, s.Key)
		}
	}
	return d.Config, keys
}

// MayBeEmpty tells whether "" is a value of the setting.
func (s Setting) MayBeEmpty() bool { return s.empty }
