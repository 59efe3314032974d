package ocispec

import (
	"path"
	"strings"

	"directx-nri/internal/winpath"
)

const systemDrive = "C:"

// DestinationKey is equal for two destinations in a container exactly when
// they are the same place.
func DestinationKey(os OS, destination string) string {
	if os == Windows {
		// A path without a drive is on the container's system drive.
		if rooted := strings.TrimLeft(destination, `/\`); len(rooted) == len(destination)-1 {
			destination = systemDrive + destination
		}
		return winpath.Key(destination)
	}
	return path.Clean("/" + destination)
}

func samePath(os OS, a, b string) bool { return DestinationKey(os, a) == DestinationKey(os, b) }
