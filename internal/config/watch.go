package config

import (
	"context"
	"maps"
	"os"
	"time"
)

// pollInterval is the time between polls. A file that is written in several steps is
// reported when two polls are equal.
const pollInterval = 250 * time.Millisecond

// watchFiles calls changed at the start, after each change of the files, and after each
// interval, until ctx ends. It polls: that also works for files and directories that do not
// exist yet, and for Kubernetes volumes, which the kubelet changes through a symbolic link.
func watchFiles(ctx context.Context, files []string, interval time.Duration, changed func()) {
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

// fileStates are the files that exist, by path.
type fileStates map[string]os.FileInfo

func poll(files []string) fileStates {
	s := fileStates{}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			s[file] = info
		}
	}
	return s
}

func (s fileStates) equal(other fileStates) bool {
	return maps.EqualFunc(s, other, func(a, b os.FileInfo) bool {
		return a.Mode() == b.Mode() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
	})
}
