package capabilities

import "github.com/directx-nri/directx-nri/internal/win32"

// Query returns what this Windows supports.
func Query() Capabilities {
	return Capabilities{Windows: win32.WindowsVersion(), HCSErr: win32.CheckHCS()}
}

// Build returns the build number of this Windows, 0 on another system.
func Build() uint32 { return win32.WindowsBuild() }
