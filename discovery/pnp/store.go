package pnp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// driverStore returns the directory of p's driver package in the driver store.
//
// The driver's INF and the path of the user-mode driver each determine the directory, and one of them
// is enough. If only the user-mode driver does, note reports why. If the two directories differ, it is
// an error: the installation of a driver is not complete until Windows restarts.
func driverStore(p Properties) (dir, note string, err error) {
	driverDirs := userModeDirs(p.Values)
	if p.PackageDir == "" {
		cause := "it has no INF"
		if p.PackageDirErr != nil {
			cause = errlog.ErrorLine(p.PackageDirErr)
		}
		if len(driverDirs) != 1 {
			return "", "", fmt.Errorf("its driver's directory in the driver store is unknown (%s, and its user-mode driver is in %d of them): reinstall the driver",
				cause, len(driverDirs))
		}
		return driverDirs[0], "the INF's directory in the driver store is unknown; using the user-mode driver's: " + cause, nil
	}
	dir = winpath.Clean(p.PackageDir)
	if !isOnDrive(dir) {
		return "", "", fmt.Errorf("its driver's INF is in %s, which is not a directory on a drive: reinstall the driver", quote(p.PackageDir))
	}
	if len(driverDirs) > 0 && !slices.ContainsFunc(driverDirs, func(d string) bool { return winpath.Equal(d, dir) }) {
		return "", "", fmt.Errorf("its driver's directory is %s according to its INF and %s according to its user-mode driver: restart Windows to complete the driver's installation, or reinstall it",
			quote(dir), quote(driverDirs[0]))
	}
	return dir, "", nil
}

// userModeName is the driver key's value with the files of the user-mode driver for 64-bit
// programs.
// https://learn.microsoft.com/windows-hardware/drivers/display/loading-a-user-mode-display-driver
const userModeName = "UserModeDriverName"

// userModeDirs returns the driver store directories of the user-mode driver.
func userModeDirs(values []win32.RegistryValue) (dirs []string) {
	for _, file := range userModeFiles(values) {
		dir, ok := packageDir(file)
		if ok && !slices.ContainsFunc(dirs, func(d string) bool { return winpath.Equal(d, dir) }) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func userModeFiles(values []win32.RegistryValue) (files []string) {
	for _, v := range values {
		if v.Subkey == "" && strings.EqualFold(v.Name, userModeName) {
			names, _ := valueStrings(v) // Values of other types are ignored.
			files = append(files, names...)
		}
	}
	return files
}

// packageDir returns the directory of the driver package that contains the file.
func packageDir(path string) (string, bool) {
	path = winpath.Clean(path)
	elements := strings.Split(path, `\`)
	for i := range len(elements) - 3 {
		if strings.EqualFold(elements[i], "DriverStore") && strings.EqualFold(elements[i+1], "FileRepository") && isOnDrive(path) {
			return strings.Join(elements[:i+3], `\`), true
		}
	}
	return "", false
}

// isOnDrive reports whether a cleaned path is absolute and on a drive.
func isOnDrive(path string) bool {
	return winpath.IsAbs(path) && !strings.HasPrefix(path, `\`)
}
