package capabilities

import (
	"fmt"

	"directx-nri/internal/policy"
)

// Resolve returns how the containers of a node are given devices whose
// configuration says mode. ask is asked what this Windows can do when mode leaves
// that open; os is the containers' operating system.
//
// Where nobody can be asked, single devices are given: that is a node of Linux, also
// one that stands for a Windows one in tests.
func Resolve(mode policy.Assignment, os string, ask func() (Capabilities, error)) Assignment {
	switch {
	case os != "windows":
		return Assignment{Individual: true, Reason: "containers of Linux are given single devices, by their device nodes"}
	case mode == policy.AssignByPath:
		return Assignment{Individual: true, Reason: fmt.Sprintf("the configuration says assignmentMode: %s", mode)}
	case mode == policy.AssignByClass:
		return Assignment{Reason: fmt.Sprintf("the configuration says assignmentMode: %s; a container is given all GPUs of the node", mode)}
	}
	c, err := ask()
	if err != nil {
		return Assignment{Individual: true, Reason: fmt.Sprintf("what Windows can do is not known (%v), and single devices are usual", err)}
	}
	return c.Assignment()
}

// Mode returns the mode that a stands for, as the configuration spells it.
func (a Assignment) Mode() policy.Assignment {
	if a.Individual {
		return policy.AssignByPath
	}
	return policy.AssignByClass
}

// lastWithout is the last Windows Server whose HCS cannot assign single devices.
// What lies between it and firstBuild is out of support, and HCS must be asked.
const lastWithout = 17763

// toldByBuild tells whether the build number of a Windows alone tells what its HCS
// can do.
func toldByBuild(build uint32) bool { return build >= firstBuild || build <= lastWithout }
