package ocispec

import (
	"path"
	"strings"

	"github.com/directx-nri/directx-nri/internal/winpath"
)

const systemDrive = "C:"

// DestinationKey returns a string that is the same for two destinations exactly
// when they are the same place in a container.
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
