// Package capabilities says what this Windows can do with GPUs in containers.
package capabilities

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"directx-nri/internal/win32"
)

// Schema is a version of the documents that the Host Compute Service (HCS), which
// makes Windows' containers, is spoken to in.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#Version
type Schema struct {
	Major, Minor uint32
}

func (s Schema) String() string { return fmt.Sprintf("%d.%d", s.Major, s.Minor) }

func (s Schema) compare(other Schema) int {
	return cmp.Or(cmp.Compare(s.Major, other.Major), cmp.Compare(s.Minor, other.Minor))
}

// firstBuild is the first Windows whose HCS assigns single devices to containers:
// Windows Server 2022.
// https://learn.microsoft.com/virtualization/windowscontainers/deploy-containers/hardware-devices-in-containers
const firstBuild = 20348

// individual is the first schema with devices by their location path.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#Device
func individual() Schema { return Schema{Major: 2, Minor: 2} }

// Capabilities is what is known of a Windows.
type Capabilities struct {
	Windows win32.Version
	// Schemas are what HCS understands, as it lists them. They are of no use when
	// SchemasErr is not nil.
	Schemas []Schema
	// SchemasErr is why HCS did not say. It matches [errors.ErrUnsupported] where
	// there is no HCS: the Containers feature of Windows is not installed.
	SchemasErr error
	// BuildTells has the build number decide: HCS was not asked.
	BuildTells bool
}

// Assignment says how containers can be given devices.
type Assignment struct {
	// Individual tells that a container can be given single devices, by their
	// location paths. Otherwise it is given all GPUs, by their class.
	Individual bool
	// Reason is one line for a person.
	Reason string
}

// Assignment returns how containers can be given devices here.
func (c Capabilities) Assignment() Assignment {
	if c.BuildTells {
		return byBuild(c.Windows.Build)
	}
	if c.SchemasErr != nil || len(c.Schemas) == 0 {
		a, why := byBuild(c.Windows.Build), cmp.Or(c.SchemasErr, errors.New("it names no schema"))
		a.Reason += fmt.Sprintf("; HCS did not say (%s)", strings.Join(strings.Fields(why.Error()), " "))
		return a
	}
	newest := slices.MaxFunc(c.Schemas, Schema.compare)
	if newest.compare(individual()) < 0 {
		return Assignment{Reason: fmt.Sprintf("HCS understands schema %s and older, and single devices need %s: Windows Server 2022 or newer; a container is given all GPUs of the node",
			newest, individual())}
	}
	return Assignment{Individual: true, Reason: fmt.Sprintf("HCS understands schema %s, and single devices need %s", newest, individual())}
}

// byBuild decides where HCS did not say, or need not be asked.
func byBuild(build uint32) Assignment {
	a := Assignment{Individual: build >= firstBuild}
	if a.Individual {
		a.Reason = fmt.Sprintf("by this Windows' build, %d, single devices can be given: %d, Windows Server 2022, or newer", build, firstBuild)
	} else {
		a.Reason = fmt.Sprintf("by this Windows' build, %d, a container is given all GPUs of the node: single devices need %d, Windows Server 2022, or newer", build, firstBuild)
	}
	return a
}

// ParseSchemas reads the schema versions in HCS's answer to a question for its
// basic properties.
// https://learn.microsoft.com/virtualization/api/hcs/schemareference#ServiceProperties
func ParseSchemas(answer string) ([]Schema, error) {
	var properties struct {
		Properties []json.RawMessage
	}
	if err := json.Unmarshal([]byte(answer), &properties); err != nil {
		return nil, fmt.Errorf("read the answer of the Host Compute Service: %w", err)
	}
	var schemas []Schema
	for _, raw := range properties.Properties {
		// Of the kinds of property that may be here, one has the schemas.
		var basic struct {
			SupportedSchemaVersions []Schema
		}
		if err := json.Unmarshal(raw, &basic); err != nil {
			return nil, fmt.Errorf("read the answer of the Host Compute Service: %w", err)
		}
		schemas = append(schemas, basic.SupportedSchemaVersions...)
	}
	if len(schemas) == 0 {
		return nil, errors.New("read the answer of the Host Compute Service: it names no schema version")
	}
	return schemas, nil
}
