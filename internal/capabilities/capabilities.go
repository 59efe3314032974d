// Package capabilities reports what this Windows supports for GPUs in containers.
package capabilities

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"directx-nri/internal/policy"
	"directx-nri/internal/win32"
)

// Schema is a version of the documents of the Host Compute Service (HCS).
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#Version
type Schema struct {
	Major, Minor uint32
}

func (s Schema) String() string { return fmt.Sprintf("%d.%d", s.Major, s.Minor) }

// MarshalText returns String for JSON.
func (s Schema) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Schema) compare(other Schema) int {
	return cmp.Or(cmp.Compare(s.Major, other.Major), cmp.Compare(s.Minor, other.Minor))
}

const (
	// firstBuild is the first Windows build whose HCS assigns single devices to
	// containers: Windows Server 2022.
	// https://learn.microsoft.com/virtualization/windowscontainers/deploy-containers/hardware-devices-in-containers
	firstBuild = 20348
	// lastWithout is the last Windows Server without that. HCS has to be queried on
	// the builds in between, which are out of support.
	lastWithout = 17763
)

// individual returns the first schema with devices by location path.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#Device
func individual() Schema { return Schema{Major: 2, Minor: 2} }

// Capabilities are those of a Windows.
type Capabilities struct {
	Windows win32.Version `json:"windows"`
	// Schemas are those that HCS supports.
	Schemas []Schema `json:"hcsSchemas,omitempty"`
	// SchemasErr is why HCS did not report them. It matches [errors.ErrUnsupported]
	// if there is no HCS: the Windows feature Containers is not installed.
	SchemasErr error `json:"hcsError,omitempty"`
	// ByBuild reports whether the build number decides and HCS was not queried.
	ByBuild bool `json:"-"`
}

// Assignment is how containers are assigned devices.
type Assignment struct {
	// Individual reports whether containers get single devices, by location path.
	// Otherwise they get all GPUs, by their class.
	Individual bool
	// Reason is one line.
	Reason string
}

// Assignment returns how containers can be assigned devices.
func (c Capabilities) Assignment() Assignment {
	if c.ByBuild {
		return byBuild(c.Windows.Build)
	}
	if c.SchemasErr != nil || len(c.Schemas) == 0 {
		a, why := byBuild(c.Windows.Build), cmp.Or(c.SchemasErr, errors.New("no schema version"))
		a.Reason += fmt.Sprintf("; HCS did not report its schemas (%s)", strings.Join(strings.Fields(why.Error()), " "))
		return a
	}
	newest := slices.MaxFunc(c.Schemas, Schema.compare)
	if newest.compare(individual()) < 0 {
		return Assignment{Reason: fmt.Sprintf("HCS supports schema %s, and single devices require %s (Windows Server 2022): containers get all GPUs of the node", newest, individual())}
	}
	return Assignment{Individual: true, Reason: fmt.Sprintf("HCS supports schema %s, and single devices require %s", newest, individual())}
}

func byBuild(build uint32) Assignment {
	if build >= firstBuild {
		return Assignment{Individual: true, Reason: fmt.Sprintf("Windows build %d assigns single devices, as all builds since %d do", build, firstBuild)}
	}
	return Assignment{Reason: fmt.Sprintf("Windows build %d cannot assign single devices, which requires %d (Windows Server 2022): containers get all GPUs of the node", build, firstBuild)}
}

// decides reports whether a build number alone decides.
func decides(build uint32) bool { return build >= firstBuild || build <= lastWithout }

// ParseSchemas returns the schema versions in HCS's basic properties.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#ServiceProperties
func ParseSchemas(answer string) ([]Schema, error) {
	var properties struct {
		Properties []struct {
			SupportedSchemaVersions []Schema
		}
	}
	if err := json.Unmarshal([]byte(answer), &properties); err != nil {
		return nil, fmt.Errorf("parse the answer of the Host Compute Service: %w", err)
	}
	var schemas []Schema
	for _, p := range properties.Properties {
		schemas = append(schemas, p.SupportedSchemaVersions...)
	}
	if len(schemas) == 0 {
		return nil, errors.New("parse the answer of the Host Compute Service: no schema version")
	}
	return schemas, nil
}

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
