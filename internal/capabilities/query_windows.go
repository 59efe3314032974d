package capabilities

import "github.com/directx-nri/directx-nri/internal/win32"

// Query returns what this Windows supports.
func Query() Capabilities {
	properties, err := win32.HCSProperties()
	return Capabilities{Windows: win32.WindowsVersion(), HCSErr: err, HCSSchemas: schemas(properties)}
}

// Build returns the build number of this Windows, 0 on another system.
func Build() uint32 { return win32.WindowsBuild() }
