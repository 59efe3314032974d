package main

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// statusChanged returns when the file at path was written or put there, which is
// later than when its content was written; of one that is not there, when that
// happened to its folder.
func statusChanged(path string) (at time.Time, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return time.Time{}, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}, false
	}
	return time.Unix(stat.Ctim.Unix()), true
}
