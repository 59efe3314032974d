package pnp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// driverStore returns the directory of p's driver package in the driver store, with a note if it is not that
// of the driver's INF. A user-mode driver that is elsewhere is the one that runs: a driver can have it in a
// package of its own, and the INF is that of the next driver from its installation until Windows restarts.
func driverStore(p Properties) (dir, note string, err error) {
	dir = winpath.Clean(p.PackageDir)
	driverDirs := userModeDirs(p.Values)
	if len(driverDirs) == 0 && strings.Contains(discovery.NormalizeID(p.InstanceID), virtualRender) {
		return "", "", errors.New("it is a GPU of the Hyper-V host, and Windows does not report which directory of HostDriverStore has its driver: describe it in an inventory that has the directory")
	}
	isDir := func(d string) bool { return winpath.Equal(d, dir) }
	if winpath.IsAbs(dir) && (len(driverDirs) == 0 || slices.ContainsFunc(driverDirs, isDir)) {
		return dir, "", nil
	}
	cause := cmp.Or(errlog.Text(p.PackageDirErr), "its INF is in "+quote(p.PackageDir))
	if len(driverDirs) == 0 {
		return "", "", fmt.Errorf("its driver's directory in the driver store is unknown (%s): reinstall the driver", cause)
	}
	return driverDirs[0], "its INF's directory in the driver store is unknown or another; using the user-mode driver's: " + cause, nil
}

// virtualRender is in the instance IDs of GPUs that a Hyper-V host shares with its guests (GPU-PV). Their INF is
// Windows' own.
const virtualRender = `VEN_1414&DEV_008E`

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

// packageDir returns the directory of the driver package that contains the file. Windows guests of Hyper-V have the
// packages of the host's driver in HostDriverStore.
func packageDir(path string) (string, bool) {
	path = winpath.Clean(path)
	elements := strings.Split(path, `\`)
	for i := range len(elements) - 3 {
		isStore := strings.EqualFold(elements[i], "DriverStore") || strings.EqualFold(elements[i], "HostDriverStore")
		if isStore && strings.EqualFold(elements[i+1], "FileRepository") && winpath.IsAbs(path) {
			return strings.Join(elements[:i+3], `\`), true
		}
	}
	return "", false
}
