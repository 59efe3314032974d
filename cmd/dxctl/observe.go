package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/hostfiles"
)

// observe returns the facts of a Windows node that only claims need.
func (n *nodeFacts) observe(ctx context.Context, f doctor.Facts) doctor.Observations {
	var o doctor.Observations
	if n.os != "windows" {
		return o
	}
	root := os.Getenv("SystemRoot")
	drive := filepath.VolumeName(root) + `\`
	o.Wine = exists(filepath.Join(root, "System32", "winecfg.exe"))
	o.HostProcess = os.Getenv("CONTAINER_SANDBOX_MOUNT_POINT") != ""
	// Windows creates both.
	for path, want := range map[string]string{drive + "Documents and Settings": drive + "Users", drive + "PROGRA~1": drive + "Program Files"} {
		switch got, _, err := hostfiles.Root("").Final(path); {
		case err == nil:
			o.Links = append(o.Links, doctor.Link{Path: path, Want: want, Got: got})
		case !errors.Is(err, fs.ErrNotExist):
			o.Links = append(o.Links, doctor.Link{Path: path, Want: want, Got: err.Error()})
		}
	}
	i := slices.IndexFunc(f.Shims, func(s doctor.Shim) bool { return s.Err == nil })
	if i < 0 {
		return o
	}
	const starts = 11
	times := make([]time.Duration, starts)
	for t := range times {
		begin := time.Now()
		if _, err := n.shimVersion(ctx, f.Shims[i].Path); err != nil {
			return o
		}
		times[t] = time.Since(begin)
	}
	slices.Sort(times)
	o.ShimStart = times[starts/2]
	return o
}
