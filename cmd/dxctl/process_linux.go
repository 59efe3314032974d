package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"directx-nri/internal/localgrpc"
)

// statusChanged returns when the file at path was written or moved there, or when a
// file was last removed from its directory if it does not exist.
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

// containerdSearchPath returns the directories in which containerd finds shims: its
// PATH, and the directory of its program. It is unknown on Windows.
// https://github.com/containerd/containerd/blob/v1.7.35/runtime/v2/manager.go
func containerdSearchPath(ctx context.Context, socket string) []string {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	process, err := localgrpc.SocketOwner(ctx, socket)
	if err != nil {
		return nil
	}
	defer func() { _ = process.Close() }()
	if is, err := process.Is(containerdProgram); err != nil || !is {
		return nil
	}
	var dirs []string
	proc := fmt.Sprintf("/proc/%d/", process.PID)
	environ, _ := os.ReadFile(proc + "environ")
	for variable := range strings.SplitSeq(string(environ), "\x00") {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			dirs = filepath.SplitList(path)
		}
	}
	if program, err := os.Readlink(proc + "exe"); err == nil {
		dirs = append(dirs, filepath.Dir(program))
	}
	return dirs
}
