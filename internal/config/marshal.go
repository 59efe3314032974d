package config

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"directx-nri/internal/quantity"
)

// Marshal returns c as a configuration file that [Parse] makes c of again,
// whatever counted more than the file that c was made of.
func Marshal(c Config) ([]byte, error) {
	top := mapping{}
	top.add("apiVersion", scalar(APIVersion))
	top.add("kind", scalar(Kind))
	sections := map[string]*mapping{"": &top}
	usual := Default()
	for _, s := range Settings() {
		// Both are in the rules.
		if s.Key == "preset" || s.Key == "replicas" {
			continue
		}
		text := s.Value(c)
		if text == s.Value(usual) {
			continue
		}
		section, key := split(s.Key)
		if sections[section] == nil {
			sections[section] = &mapping{}
		}
		value := scalar(text)
		if s.Type == NumberValue || s.Type == SwitchValue {
			value.Style = 0
			value.Tag = ""
		}
		sections[section].add(key, value)
	}
	if m := c.ExtraMounts; len(m.HostFolders)+len(m.Destinations) > 0 {
		if sections["extraMounts"] == nil {
			sections["extraMounts"] = &mapping{}
		}
		sections["extraMounts"].addStrings("hostFolders", m.HostFolders)
		sections["extraMounts"].addStrings("destinations", m.Destinations)
	}
	for _, name := range sectionNames() {
		if section := sections[name]; section != nil {
			top.add(name, section.node())
		}
	}
	top.add("resources", resourcesNode(c.Resources))
	if files := runtimeFilesNode(c.RuntimeFiles); len(files.Content) > 0 {
		top.add("runtimeFiles", files)
	}
	return yaml.Marshal(top.node())
}

func sectionNames() []string {
	names, _ := keys(Settings())
	return names
}

// mapping is a YAML mapping in the making.
type mapping struct{ content []*yaml.Node }

func (m *mapping) add(key string, value *yaml.Node) {
	m.content = append(m.content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
}

// addStrings adds a list that is not empty.
func (m *mapping) addStrings(key string, list []string) {
	if len(list) == 0 {
		return
	}
	node := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range list {
		node.Content = append(node.Content, scalar(s))
	}
	m.add(key, node)
}

func (m *mapping) addPlain(key, text string) { m.add(key, plain(text)) }

func (m *mapping) node() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Content: m.content} }

// scalar returns a string, in quotes where it would be something else without, also
// to programs that read YAML 1.1, in which on and off are booleans.
func scalar(text string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if text == "on" || text == "off" {
		node.Style = yaml.SingleQuotedStyle
	}
	return node
}

// plain returns a number or a boolean.
func plain(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

func resourcesNode(rules []Resource) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, r := range rules {
		m := mapping{}
		m.add("name", scalar(r.Name))
		if match := matchNode(r.Match); len(match.Content) > 0 {
			m.add("match", match)
		}
		m.addPlain("replicas", strconv.Itoa(r.Replicas))
		m.add("allocationPolicy", scalar(string(r.Policy)))
		if r.MaxPerContainer > 0 {
			m.addPlain("maxPerContainer", strconv.Itoa(r.MaxPerContainer))
		}
		if r.ExclusiveRequests {
			m.addPlain("exclusiveRequests", "true")
		}
		if r.MixedDrivers {
			m.add("mixedDrivers", scalar("allow"))
		}
		list.Content = append(list.Content, m.node())
	}
	return list
}

func matchNode(match Match) *yaml.Node {
	m := mapping{}
	if match.Kind != "" {
		m.add("kind", scalar(match.Kind))
	}
	var vendors []string
	for _, id := range match.Vendors {
		vendors = append(vendors, vendorName(id))
	}
	m.addStrings("vendor", vendors)
	m.addStrings("description", match.Descriptions)
	memory, driver := mapping{}, mapping{}
	for _, bound := range []struct {
		key    string
		bytes  uint64
		driver DriverVersion
	}{{"min", match.MinMemory, match.MinDriver}, {"max", match.MaxMemory, match.MaxDriver}} {
		if bound.bytes != 0 {
			memory.add(bound.key, scalar(quantity.FormatBytes(bound.bytes)))
		}
		if bound.driver != (DriverVersion{}) {
			driver.add(bound.key, scalar(bound.driver.String()))
		}
	}
	if len(memory.content) > 0 {
		m.add("dedicatedMemory", memory.node())
	}
	if len(driver.content) > 0 {
		m.add("driverVersion", driver.node())
	}
	for _, is := range []struct {
		key   string
		value *bool
	}{{"integrated", match.Integrated}, {"detachable", match.Detachable}} {
		if is.value != nil {
			m.addPlain(is.key, strconv.FormatBool(*is.value))
		}
	}
	m.addStrings("locationPath", match.LocationPaths)
	return m.node()
}

func runtimeFilesNode(list []RuntimeFiles) *yaml.Node {
	top := mapping{}
	list = slices.Clone(list)
	without := map[uint16]bool{}
	for _, builtIn := range builtInRuntimeFiles() {
		i := slices.IndexFunc(list, func(r RuntimeFiles) bool { return same(r, builtIn) })
		if i < 0 {
			without[builtIn.Vendor] = true
			continue
		}
		list = slices.Delete(list, i, i+1)
	}
	for _, r := range list {
		m := mapping{}
		if without[r.Vendor] {
			m.addPlain("defaults", "false")
			delete(without, r.Vendor)
		}
		m.addStrings("remove", r.Remove)
		added := &yaml.Node{Kind: yaml.SequenceNode}
		for _, file := range r.Add {
			f := mapping{}
			f.add("source", scalar(file.Source))
			f.add("folder", scalar(file.Folder))
			if file.Destination != "" {
				f.add("destination", scalar(file.Destination))
			}
			added.Content = append(added.Content, f.node())
		}
		if len(added.Content) > 0 {
			m.add("add", added)
		}
		top.add(vendorName(r.Vendor), m.node())
	}
	for _, builtIn := range builtInRuntimeFiles() {
		if without[builtIn.Vendor] {
			m := mapping{}
			m.addPlain("defaults", "false")
			top.add(vendorName(builtIn.Vendor), m.node())
		}
	}
	return top.node()
}

func same(a, b RuntimeFiles) bool {
	return a.Vendor == b.Vendor && slices.Equal(a.Remove, b.Remove) && slices.Equal(a.Add, b.Add)
}
