package capabilities

import "directx-nri/internal/win32"

// Ask returns what the Windows that this program runs on can do. An error matches
// [errors.ErrUnsupported] and tells that this is no Windows.
func Ask() (Capabilities, error) {
	c := Capabilities{Windows: win32.WindowsVersion()}
	answer, err := win32.HCSServiceProperties()
	if err != nil {
		c.SchemasErr = err
		return c, nil
	}
	c.Schemas, c.SchemasErr = ParseSchemas(answer)
	return c, nil
}

// AskQuickly is [Ask] for a program that runs at each container's start: where the
// build number tells enough, HCS is not asked.
func AskQuickly() (Capabilities, error) {
	c := Capabilities{Windows: win32.Version{Build: win32.WindowsBuild()}}
	if toldByBuild(c.Windows.Build) {
		c.BuildTells = true
		return c, nil
	}
	return Ask()
}
