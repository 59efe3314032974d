package pnp

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"directx-nri/internal/winpath"
)

// repository is the folder of the driver store that has one folder for each
// driver package.
const repository = `\DriverStore\FileRepository\`

// driverStore returns the folder of the package of raw's driver in the driver
// store.
//
// There are two sources: where Windows keeps the driver's INF, and where the
// driver key says that the user-mode driver is. Where both say something they
// must agree; one alone is enough, and note says why it is alone. An error says
// what is wrong and what to do.
func driverStore(raw Raw) (folder, note string, err error) {
	byINF := ""
	if raw.INFStore != "" {
		if byINF = winpath.Clean(raw.INFStore); !onDrive(byINF) {
			return "", "", fmt.Errorf("its driver's INF is in %s, which is no folder of a drive: reinstall the driver", quote(raw.INFStore))
		}
	}
	byDriver := userModeFolders(raw.Values)
	agrees := func(folder string) bool { return winpath.Equal(folder, byINF) }
	switch {
	case byINF != "" && (len(byDriver) == 0 || len(byDriver) == 1 && agrees(byDriver[0])):
		return byINF, "", nil
	case byINF != "" && slices.ContainsFunc(byDriver, agrees):
		return byINF, fmt.Sprintf("its user-mode driver is in several folders, %s; the one of the driver's INF counts", quoteAll(byDriver)), nil
	case byINF != "":
		return "", "", fmt.Errorf("its driver is from %s by its INF and from %s by its user-mode driver: restart Windows so that the driver's installation ends, or reinstall it",
			quote(byINF), quoteAll(byDriver))
	case len(byDriver) == 1:
		note := "where the driver's INF is in the driver store is not known, so its folder is the user-mode driver's"
		if raw.INFStoreErr != nil {
			note += ": " + oneLine(raw.INFStoreErr.Error())
		}
		return byDriver[0], note, nil
	case len(byDriver) > 1:
		return "", "", fmt.Errorf("its user-mode driver is in several folders, %s, and where its INF is is not known: reinstall the driver", quoteAll(byDriver))
	}
	reason := raw.INFStoreErr
	if reason == nil {
		reason = errors.New("neither its INF nor its user-mode driver tells")
	}
	return "", "", fmt.Errorf("its driver's folder in the driver store is not known (%s): reinstall the driver", oneLine(reason.Error()))
}

// userModeFolders returns the driver store folders that the user-mode driver is
// in, each once. The one for 32-bit programs tells only where the one for 64-bit
// programs does not: nobody notices when it is a former driver's.
// https://learn.microsoft.com/windows-hardware/drivers/display/loading-a-user-mode-display-driver
func userModeFolders(values []Value) []string {
	for _, name := range []string{"UserModeDriverName", "UserModeDriverNameWow"} {
		var folders []string
		for _, value := range values {
			if value.Subkey != "" || !strings.EqualFold(value.Name, name) {
				continue
			}
			// A name without a path, and whatever else drivers write there, tells
			// nothing.
			files, _ := value.text()
			// Mostly one file that serves all versions of Direct3D.
			for _, file := range slices.Compact(files) {
				folder, ok := packageFolder(file)
				if ok && !slices.ContainsFunc(folders, func(f string) bool { return winpath.Equal(f, folder) }) {
					folders = append(folders, folder)
				}
			}
		}
		if len(folders) > 0 {
			return folders
		}
	}
	return nil
}

// hasUserModeDriver tells whether the driver has a part for programs. Without it
// it shows a picture and nothing more.
func hasUserModeDriver(values []Value) bool {
	return slices.ContainsFunc(values, func(v Value) bool {
		names, err := v.text()
		return v.Subkey == "" && strings.EqualFold(v.Name, "UserModeDriverName") && err == nil && len(names) > 0
	})
}

// packageFolder returns the folder of the driver package that the file at path is
// in.
func packageFolder(path string) (string, bool) {
	path = winpath.Clean(path)
	i := indexFold(path, repository)
	if i < 0 || !onDrive(path) {
		return "", false
	}
	name, _, found := strings.Cut(path[i+len(repository):], `\`)
	if !found || name == "" {
		return "", false
	}
	return path[:i+len(repository)] + name, true
}

// onDrive tells whether a cleaned path is that of a drive, and not a network
// share's: the driver store is on Windows' own.
func onDrive(path string) bool {
	return winpath.IsAbs(path) && !strings.HasPrefix(path, `\`)
}

// indexFold is strings.Index without regard to the case of ASCII letters.
func indexFold(s, substr string) int {
	for i := 0; i+len(substr) <= len(s); i++ {
		if strings.EqualFold(s[i:i+len(substr)], substr) {
			return i
		}
	}
	return -1
}

func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = quote(text)
	}
	return strings.Join(quoted, ", ")
}
