package ocispec

import (
	"path"

	"directx-nri/internal/winpath"
)

// DestinationKey is equal for two destinations in a container exactly when
// they are the same place.
func DestinationKey(os OS, destination string) string {
	if os == Windows {
		return winpath.Key(destination)
	}
	return path.Clean("/" + destination)
}

func samePath(os OS, a, b string) bool { return DestinationKey(os, a) == DestinationKey(os, b) }
