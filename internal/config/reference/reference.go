// Package reference makes what is published of the configuration of the tables
// that it is read by: the JSON Schema and the tables of docs/configuration.md.
package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"directx-nri/internal/config"
)

// SchemaID is the schema's $id.
const SchemaID = "https://directx.microsoft.com/schemas/directx-nri/v1alpha1/config.schema.json"

// Key is a key that is no setting: one of a list or of a mapping of one's own.
type Key struct {
	// Path is the key's, with [] for each entry of a list and VENDOR for a vendor's
	// name: resources[].match.kind.
	Path string
	// Default is what stands for it when it is left out, "" for nothing.
	Default string
	// Example is a value as a file has it.
	Example string
	// Usage says in a line what it is.
	Usage string

	schema object
}

type object = map[string]any

const (
	memoryPattern  = `^(0|[1-9][0-9]*)([KMGT]i(B)?)?$`
	versionPattern = `^[0-9]{1,5}(\.[0-9]{1,5}){0,3}$`
	sourcePattern  = `^[^/\\:]([^:]*[^: .])?$`
	vendorPattern  = `^(amd|intel|microsoft|nvidia|qualcomm|0x[0-9A-Fa-f]{1,4})$`
)

// Keys returns the keys that are no settings, in the order of the documentation.
func Keys() []Key {
	text := object{"type": "string", "minLength": 1}
	glob := object{"type": "string", "minLength": 1, "maxLength": 256}
	globs := orList(glob)
	vendor := object{"anyOf": []any{object{"type": "string", "pattern": vendorPattern}, object{"type": "integer", "minimum": 1, "maximum": 65535}}}
	memory := object{"anyOf": []any{object{"type": "string", "pattern": memoryPattern}, object{"type": "integer", "minimum": 1}}}
	version := object{"anyOf": []any{object{"type": "string", "pattern": versionPattern}, object{"type": "number", "minimum": 0}}}
	boolean := object{"type": "boolean"}
	source := object{"type": "string", "pattern": sourcePattern}
	return []Key{
		{"resources", "the two below", "[{name: directx.microsoft.com/display, match: {kind: display}}]", "the rules that say which GPUs a resource holds, in order: a GPU belongs to the first that it fits, and to none when it fits none", object{"type": "array", "minItems": 1, "maxItems": 256}},
		{"resources[].name", "", "example.com/t4", "the extended resource that pods ask for; several rules may have one name", object{"type": "string", "maxLength": 308, "pattern": `^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`, "not": object{"pattern": `^(([^/]*\.)?kubernetes\.io|requests\.[^/]*)/`}}},
		{"resources[].match", "every GPU", "{kind: display, vendor: nvidia}", "which GPUs the rule is for: those that fit all of its keys", object{"type": "object"}},
		{"resources[].match.kind", "", "display", "display, the full WDDM driver model, or compute, compute only (MCDM)", object{"enum": []any{"display", "compute"}}},
		{"resources[].match.vendor", "", "[nvidia, 0x1A03]", "amd, intel, microsoft, nvidia, qualcomm, or a PCI vendor ID in hexadecimal; or a list of them, of which one must fit", orList(vendor)},
		{"resources[].match.description", "", "'NVIDIA Tesla T4*'", "the GPU's name, with * for any characters and ? for any one, whatever the case; or a list, of which one must fit", globs},
		{"resources[].match.dedicatedMemory", "", "{min: 15Gi}", "how much memory of its own the GPU has: min, max or both, in bytes or with Ki, Mi, Gi or Ti (and a B) behind", object{"type": "object", "minProperties": 0}},
		{"resources[].match.dedicatedMemory.min", "", "15Gi", "at least that much; a card tells a little less than is written on its box", memory},
		{"resources[].match.dedicatedMemory.max", "", "16GiB", "at most that much", memory},
		{"resources[].match.driverVersion", "", "{min: 31.0.15.5222}", "the driver's version: min, max or both. A GPU whose version is not known is in no bounds", object{"type": "object"}},
		{"resources[].match.driverVersion.min", "", "31.0.15.5222", "at least that version; missing numbers count as 0", version},
		{"resources[].match.driverVersion.max", "", "'31'", "at most that version; missing numbers count as 65535, so that 31 takes all of 31.x", version},
		{"resources[].match.integrated", "", "false", "whether the GPU shares the processor's memory", boolean},
		{"resources[].match.detachable", "", "false", "whether the GPU can be unplugged while the node runs", boolean},
		{"resources[].match.locationPath", "", "PCIROOT(0)#PCI(1B00)*", "the GPU's PCIe location path, with * and ?; or a list, of which one must fit", globs},
		{"resources[].replicas", "replicas", "4", "how many containers may share each of the rule's GPUs, 1 to 1024", object{"type": "integer", "minimum": 1, "maximum": config.MaxReplicas}},
		{"resources[].allocationPolicy", "distributed", "packed", "which GPUs are given first: distributed, the one with the fewest replicas in use, or packed, the one with the most that has enough", object{"enum": []any{string(config.Distributed), string(config.Packed)}}},
		{"resources[].maxPerContainer", "no limit", "1", "how many replicas one container may ask for", object{"type": "integer", "minimum": 1, "maximum": 1 << 20}},
		{"resources[].exclusiveRequests", "false", "true", "a request for a multiple of the replicas is one for that many whole GPUs, with nobody else on them: it is met so or refused", boolean},
		{"resources[].mixedDrivers", "refuse", "allow", "whether a request may be met with GPUs of different vendors or driver versions, whose files have the same names. Requests of one container for two resources are not looked at together", object{"enum": []any{"refuse", "allow"}}},
		{"runtimeFiles", "nothing more", "{nvidia: {add: [nvml.dll]}}", "by vendor, files that containers get beside those that the driver lists, and ones that they do not get", object{"type": "object", "propertyNames": object{"pattern": strings.TrimSuffix(vendorPattern, ")$") + `|[0-9]{1,5})$`}}},
		{"runtimeFiles.VENDOR.defaults", "true", "false", "the built-in additions: for nvidia nvidia-smi.exe, vulkaninfo-x64.exe as vulkaninfo.exe, and vulkaninfo-x86.exe as vulkaninfo.exe for 32-bit programs", boolean},
		{"runtimeFiles.VENDOR.remove", "", "['*.txt']", "files that are left out, as paths below the driver store with * and ?", object{"type": "array", "maxItems": 64, "items": source}},
		{"runtimeFiles.VENDOR.add", "", "[tool.exe]", "further files: the file's path, or a mapping of source, folder and destination", object{"type": "array", "maxItems": 64}},
		{"runtimeFiles.VENDOR.add[].source", "", "bin/*.dll", "the file's path below the driver store, with * and ?", source},
		{"runtimeFiles.VENDOR.add[].folder", "System32", "SysWOW64", "where the container sees it: System32, or SysWOW64 for 32-bit programs", object{"enum": []any{"System32", "SysWOW64"}}},
		{"runtimeFiles.VENDOR.add[].destination", "the file's own", "vulkaninfo.exe", "its name there", object{"type": "string", "pattern": `^[^\\/:*?<>|"]+$`}},
		{"extraMounts.hostFolders", "", "['D:\\models']", "with extraMounts.sources host-folders: the node's folders that pods may have files from, with all that is below them. A folder that has, or is part of, the node's secrets is refused", object{"type": "array", "maxItems": 64, "items": text}},
		{"extraMounts.destinations", "System32 and SysWOW64", "['C:\\app']", "a container's folders that files may be mounted into, with all that is below them", object{"type": "array", "minItems": 1, "maxItems": 64, "items": text}},
	}
}

func orList(one object) object {
	return object{"anyOf": []any{one, object{"type": "array", "minItems": 1, "maxItems": 64, "items": one}}}
}

// Schema returns the JSON Schema of config.yaml, draft 2020-12. It knows what a
// schema can tell; what depends on several keys, programs say alone.
func Schema() ([]byte, error) {
	root := object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SchemaID, "title": "directx-nri configuration",
		"type": "object", "required": []any{"apiVersion", "kind"}, "additionalProperties": false,
		"properties": object{"apiVersion": object{"const": config.APIVersion}, "kind": object{"const": config.Kind}},
		// A preset has resources of its own.
		"not": object{"required": []any{"preset", "resources"}, "properties": object{"preset": object{"minLength": 1}}},
	}
	for _, s := range config.Settings() {
		put(root, s.Key, settingSchema(s), s.Usage)
	}
	for _, k := range Keys() {
		put(root, k.Path, k.schema, k.Usage)
	}
	files := at(root, "runtimeFiles.VENDOR.add")
	files["items"] = object{"anyOf": []any{object{"type": "string", "pattern": sourcePattern}, files["items"]}}
	at(root, "resources")["items"].(object)["required"] = []any{"name"}
	files["items"].(object)["anyOf"].([]any)[1].(object)["required"] = []any{"source"}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(root)
	return b.Bytes(), err
}

func settingSchema(s config.Setting) object {
	switch s.Type {
	case config.NumberValue:
		return object{"type": "integer", "minimum": s.Min, "maximum": s.Max}
	case config.SwitchValue:
		return object{"type": "boolean"}
	case config.ChoiceValue:
		choices := []any{}
		for _, c := range s.Choices {
			choices = append(choices, c)
		}
		if s.MayBeEmpty() {
			choices = append(choices, "")
		}
		return object{"enum": choices}
	}
	if s.Key == "containerd.nriIndex" {
		return object{"anyOf": []any{object{"type": "string", "pattern": "^[0-9]{2}$"}, object{"type": "integer", "minimum": 0, "maximum": 99}}}
	}
	if s.MayBeEmpty() {
		return object{"type": "string"}
	}
	return object{"type": "string", "minLength": 1}
}

// at returns the schema at a path, and makes what leads there.
func at(root object, path string) object {
	here := root
	for _, name := range strings.Split(path, ".") {
		name, isList := strings.CutSuffix(name, "[]")
		if name == "VENDOR" {
			here = below(here, "additionalProperties")
		} else {
			here["additionalProperties"] = false
			here = below(below(here, "properties"), name)
		}
		if isList {
			here = below(here, "items")
			here["type"] = "object"
		}
	}
	return here
}

func below(o object, key string) object {
	inner, ok := o[key].(object)
	if !ok {
		inner = object{}
		o[key] = inner
	}
	return inner
}

func put(root object, path string, schema object, usage string) {
	here := at(root, path)
	for key, value := range schema {
		here[key] = value
	}
	here["description"] = usage
	// What leads there is a mapping.
	if i := strings.LastIndexByte(path, '.'); i > 0 {
		if parent := at(root, strings.TrimSuffix(path[:i], "[]")); parent["type"] == nil {
			parent["type"] = "object"
		}
	}
}

// The tables of docs/configuration.md stand between such lines.
const (
	begin = "<!-- %s: made by `make generate` -->\n"
	end   = "<!-- end -->\n"
)

// Fill returns page with its tables made anew.
func Fill(page string) (string, error) {
	for name, table := range map[string]string{"settings": settingsTable(), "resources": keysTable("resources"), "runtimeFiles": keysTable("runtimeFiles"), "extraMounts": keysTable("extraMounts")} {
		before, rest, found := strings.Cut(page, fmt.Sprintf(begin, name))
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			return "", fmt.Errorf("the page has no place for the table %s", name)
		}
		page = before + fmt.Sprintf(begin, name) + table + end + after
	}
	return page, nil
}

// windowsDefaults are the defaults that differ on Windows.
func windowsDefaults() map[string]string {
	return map[string]string{
		"servedBy": "shim", "stateDir": `%ProgramData%\directx-nri`, "runtimeDir": `%ProgramData%\directx-nri\run`, "hostRoot": "", "containerOS": "windows",
		"kubelet.devicePluginDir": `C:\var\lib\kubelet\device-plugins`, "kubelet.podResourcesSocket": `\\.\pipe\kubelet-pod-resources`,
		"containerd.nriSocket": "", "containerd.criSocket": `\\.\pipe\containerd-containerd`, "shim.log": `%ProgramData%\directx-nri\shim.log`,
	}
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| key | default | example | flag | variable | what it is |\n|---|---|---|---|---|---|\n")
	windows := windowsDefaults()
	for _, s := range config.Settings() {
		usual := code(s.Default())
		if other, differs := windows[s.Key]; differs {
			usual += "; Windows: " + code(other)
		}
		flag := ""
		if s.Flag != "" {
			flag = "`--" + s.Flag + "`"
		}
		usage := s.Usage
		if s.Restart {
			usage += " (takes a restart)"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s` | %s |\n", s.Key, usual, code(s.Example), flag, s.Variable(), cell(usage))
	}
	return b.String()
}

func keysTable(section string) string {
	var b strings.Builder
	b.WriteString("| key | default | example | what it is |\n|---|---|---|---|\n")
	for _, k := range Keys() {
		if k.Path == section || strings.HasPrefix(k.Path, section+".") || strings.HasPrefix(k.Path, section+"[") {
			usual := k.Default
			if usual == "" {
				usual = "none"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Path, cell(usual), code(k.Example), cell(k.Usage))
		}
	}
	return b.String()
}

func code(text string) string {
	if text == "" {
		return `""`
	}
	return "`" + cell(text) + "`"
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
