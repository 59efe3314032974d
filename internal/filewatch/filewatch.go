// Package filewatch polls files for changes. That also works for files and directories
// that do not exist yet, and for Kubernetes volumes, which the kubelet changes through a
// symbolic link.
package filewatch

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"time"
)

// pollInterval is the time between polls. A file that is written in several steps is
// reported when two polls are equal.
const pollInterval = 250 * time.Millisecond

// Watch calls changed at the start, after each change of the files, and after each
// interval, until ctx ends. The last element of a path can be a pattern of
// [filepath.Match].
func Watch(ctx context.Context, files []string, interval time.Duration, changed func()) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	before, last := poll(files), time.Time{}
	reported := before
	for ctx.Err() == nil {
		now := poll(files)
		if now.equal(before) && !now.equal(reported) || time.Since(last) >= interval {
			reported, last = now, time.Now()
			changed()
		}
		before = now
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// state is the files that exist, by path.
type state map[string]os.FileInfo

func poll(files []string) state {
	s := state{}
	for _, pattern := range files {
		matches, _ := filepath.Glob(pattern)
		for _, file := range matches {
			if info, err := os.Stat(file); err == nil {
				s[file] = info
			}
		}
	}
	return s
}

func (s state) equal(other state) bool {
	return maps.EqualFunc(s, other, func(a, b os.FileInfo) bool {
		return a.Mode() == b.Mode() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
	})
}
