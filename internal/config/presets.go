package config

// preset is the resources and the way of assignment of another system, for
// clusters that come from there. docs/migration.md tells the rest.
type preset struct {
	name       string
	assignment Assignment
	rules      func() []Resource
}

func presets() []preset {
	return []preset{
		// https://github.com/TensorWorks/DirectX-Device-Plugins: a GPU that is
		// integrated or detachable is offered when a setting says so only.
		{"tensorworks", AssignByPath, func() []Resource {
			no := false
			rules := usualRules()
			for i := range rules {
				rules[i].Match.Integrated, rules[i].Match.Detachable = &no, &no
			}
			return rules
		}},
		// The first plugin there was, by which GPUs are those with nvidia in their
		// name unless a setting says another one.
		// https://github.com/aarnaud/k8s-directx-device-plugin
		{"microsoft", AssignByClass, func() []Resource {
			return []Resource{{Name: "microsoft.com/directx", Match: Match{Kind: kindDisplay, Descriptions: []string{"*nvidia*"}}, Policy: Distributed}}
		}},
		// https://www.alibabacloud.com/help/doc-detail/273131.htm
		{"alibaba", AssignByClass, func() []Resource {
			return []Resource{{Name: "windows.alibabacloud.com/directx", Match: Match{Kind: kindDisplay}, Policy: Distributed}}
		}},
	}
}

const (
	kindDisplay = "display"
	kindCompute = "compute"
)

// usualRules are the rules of a node that has no others. Who does not say
// replicas takes the setting's.
func usualRules() []Resource {
	return []Resource{
		{Name: "directx.microsoft.com/display", Match: Match{Kind: kindDisplay}, Policy: Distributed},
		{Name: "directx.microsoft.com/compute", Match: Match{Kind: kindCompute}, Policy: Distributed},
	}
}

func presetNames() []string {
	var names []string
	for _, p := range presets() {
		names = append(names, p.name)
	}
	return names
}

// presetOf returns the preset of that name, and for "" what a node without one
// has.
func presetOf(name string) preset {
	for _, p := range presets() {
		if p.name == name {
			return p
		}
	}
	return preset{assignment: AssignAuto, rules: usualRules}
}
