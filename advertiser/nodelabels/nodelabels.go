// Package nodelabels describes the GPUs that a node offers as node labels. Pods and autoscalers
// select nodes by them.
package nodelabels

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/internal/durable"
)

// Prefix begins the names of all labels of this package, and of no others.
const Prefix = "directx.microsoft.com/gpu."

// Names returns the names of all labels.
func Names() []string {
	names := []string{"present", "count", "product", "memory", "driver", "kind", "replicas", "sharing", "health"}
	for i, name := range names {
		names[i] = Prefix + name
	}
	return names
}

// maxValueBytes is the largest length of a label's value.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
const maxValueBytes = 63

// maxFileBytes is the size of the largest file that [Read] reads.
const maxFileBytes = 1 << 16

// ForDevices returns the labels of a node with these devices, nil if it offers no GPU. Apart from
// present, count and health, a label is left out if its value is unknown or not the same for all of the
// GPUs that are offered. The health is that of the worst GPU.
func ForDevices(devices []resources.Device) map[string]string {
	offered := slices.DeleteFunc(slices.Clone(devices), func(d resources.Device) bool { return d.Rule == nil })
	if len(offered) == 0 {
		return nil
	}
	labels, health := deviceLabels(offered[0]), "healthy"
	for _, d := range offered {
		switch {
		case !d.Health.OK():
			health = "unhealthy"
		case len(d.Notes) > 0 && health == "healthy":
			health = "degraded"
		}
		others := deviceLabels(d)
		maps.DeleteFunc(labels, func(name, value string) bool { return value == "" || others[name] != value })
	}
	labels[Prefix+"present"], labels[Prefix+"count"], labels[Prefix+"health"] = "true", strconv.Itoa(len(offered)), health
	return labels
}

// deviceLabels returns the labels that describe one GPU, with empty values if they are unknown.
func deviceLabels(d resources.Device) map[string]string {
	sharing, memory := "exclusive", ""
	if d.Rule.Replicas > 1 {
		sharing = "shared"
	}
	if mib := d.DedicatedMemory >> 20; mib > 0 {
		memory = strconv.FormatUint(mib, 10)
	}
	return map[string]string{
		Prefix + "product": labelValue(d.Description), Prefix + "memory": memory, Prefix + "driver": labelValue(d.DriverVersion),
		Prefix + "kind": string(d.Kind()), Prefix + "replicas": strconv.Itoa(d.Rule.Replicas), Prefix + "sharing": sharing,
	}
}

// labelValue returns text as the value of a label: NVIDIA-Tesla-T4 for "NVIDIA Tesla T4".
func labelValue(text string) string {
	const end = "-_."
	words := strings.FieldsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(end, r)
	})
	text = strings.Join(words, "-")
	return strings.Trim(text[:min(len(text), maxValueBytes)], end)
}

// Write writes labels to a file as node-feature-discovery reads it, unless it has them already.
// https://kubernetes-sigs.github.io/node-feature-discovery/stable/usage/customization-guide.html#local-feature-source
func Write(path string, labels map[string]string) error {
	text := "# Written by directx-advertiser.\n"
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		text += name + "=" + labels[name] + "\n"
	}
	// node-feature-discovery reads it, and does not run as root.
	if err := durable.MakeReadable(filepath.Dir(path)); err != nil {
		return err
	}
	return durable.Update(path, []byte(text), 0o644)
}

// Read returns the labels of a file of [Write].
func Read(path string) (map[string]string, error) {
	data, err := durable.Read(path, maxFileBytes)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); strings.HasPrefix(name, Prefix) {
			labels[name] = value
		}
	}
	return labels, nil
}
