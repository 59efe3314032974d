package capabilities

import (
	"fmt"

	"directx-nri/internal/policy"
)

// Resolve returns how containers are assigned devices if the configured mode is mode.
// os is the operating system of the containers. query is called if the mode is auto;
// if it fails, as it does on a Linux machine that stands in for a Windows node, single
// devices are assigned.
func Resolve(mode policy.Assignment, os string, query func() (Capabilities, error)) Assignment {
	switch {
	case os != "windows":
		return Assignment{Individual: true, Reason: "Linux containers get single devices, by their device nodes"}
	case mode == policy.AssignByPath:
		return Assignment{Individual: true, Reason: fmt.Sprintf("assignmentMode is %s", mode)}
	case mode == policy.AssignByClass:
		return Assignment{Reason: fmt.Sprintf("assignmentMode is %s: containers get all GPUs of the node", mode)}
	}
	c, err := query()
	if err != nil {
		return Assignment{Individual: true, Reason: fmt.Sprintf("the default, because Windows could not be queried (%v)", err)}
	}
	return c.Assignment()
}

// Mode returns the assignment mode that a stands for.
func (a Assignment) Mode() policy.Assignment {
	if a.Individual {
		return policy.AssignByPath
	}
	return policy.AssignByClass
}
