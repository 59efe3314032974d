package capabilities

import "directx-nri/internal/win32"

// Ask returns what this Windows supports. On another system, the error matches
// [errors.ErrUnsupported].
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

// AskQuickly is [Ask] for programs that run at each container start: it queries HCS
// only if the build number does not decide.
func AskQuickly() (Capabilities, error) {
	c := Capabilities{Windows: win32.Version{Build: win32.WindowsBuild()}}
	if decides(c.Windows.Build) {
		c.ByBuild = true
		return c, nil
	}
	return Ask()
}
