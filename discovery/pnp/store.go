package pnp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"directx-nri/internal/winpath"
)

// driverStore returns the directory of raw's driver package in the driver store.
//
// It is known from the driver's INF and from the path of the user-mode driver. They
// must agree; one of them is enough, and note says why it is used alone.
func driverStore(raw Raw) (dir, note string, err error) {
	byINF := ""
	if raw.INFStore != "" {
		if byINF = winpath.Clean(raw.INFStore); !onDrive(byINF) {
			return "", "", fmt.Errorf("its driver's INF is in %s, which is not a directory on a drive: reinstall the driver", quote(raw.INFStore))
		}
	}
	byDriver := userModeDirs(raw.Values)
	agrees := func(dir string) bool { return winpath.Equal(dir, byINF) }
	switch {
	case byINF != "" && (len(byDriver) == 0 || len(byDriver) == 1 && agrees(byDriver[0])):
		return byINF, "", nil
	case byINF != "" && slices.ContainsFunc(byDriver, agrees):
		return byINF, fmt.Sprintf("its user-mode driver is in several directories, %s; using the INF's", quoteAll(byDriver)), nil
	case byINF != "":
		return "", "", fmt.Errorf("its driver's directory is %s according to its INF and %s according to its user-mode driver: restart Windows to complete the driver's installation, or reinstall it",
			quote(byINF), quoteAll(byDriver))
	case len(byDriver) == 1:
		note := "the INF's directory in the driver store is unknown; using the user-mode driver's"
		if raw.INFStoreErr != nil {
			note += ": " + oneLine(raw.INFStoreErr.Error())
		}
		return byDriver[0], note, nil
	case len(byDriver) > 1:
		return "", "", fmt.Errorf("its user-mode driver is in several directories, %s, and its INF's is unknown: reinstall the driver", quoteAll(byDriver))
	}
	cause := raw.INFStoreErr
	if cause == nil {
		cause = errors.New("it has neither an INF nor a user-mode driver there")
	}
	return "", "", fmt.Errorf("its driver's directory in the driver store is unknown (%s): reinstall the driver", oneLine(cause.Error()))
}

// userModeNames are the driver key's values with the files of the user-mode driver,
// for 64-bit and for 32-bit programs.
// https://learn.microsoft.com/windows-hardware/drivers/display/loading-a-user-mode-display-driver
func userModeNames() []string { return []string{"UserModeDriverName", "UserModeDriverNameWow"} }

// userModeDirs returns the driver store directories of the user-mode driver. The one
// for 32-bit programs, which may be outdated, counts only without one for 64-bit.
func userModeDirs(values []Value) []string {
	for _, name := range userModeNames() {
		var dirs []string
		for _, file := range userModeFiles(values, name) {
			dir, ok := packageDir(file)
			if ok && !slices.ContainsFunc(dirs, func(d string) bool { return winpath.Equal(d, dir) }) {
				dirs = append(dirs, dir)
			}
		}
		if len(dirs) > 0 {
			return dirs
		}
	}
	return nil
}

// hasUserModeDriver reports whether the driver has a 64-bit part for programs.
func hasUserModeDriver(values []Value) bool {
	return len(userModeFiles(values, userModeNames()[0])) > 0
}

func userModeFiles(values []Value, name string) []string {
	var files []string
	for _, v := range values {
		if v.Subkey == "" && strings.EqualFold(v.Name, name) {
			names, _ := v.text() // Values of other types are ignored.
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
		if strings.EqualFold(elements[i], "DriverStore") && strings.EqualFold(elements[i+1], "FileRepository") && onDrive(path) {
			return strings.Join(elements[:i+3], `\`), true
		}
	}
	return "", false
}

// onDrive reports whether a cleaned path is absolute and on a drive.
func onDrive(path string) bool {
	return winpath.IsAbs(path) && !strings.HasPrefix(path, `\`)
}
