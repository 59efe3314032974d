package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
		got, _, err := hostfiles.Root("").Final(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		o.Links = append(o.Links, path+" leads to "+got)
		if err == nil && !strings.EqualFold(got, want) {
			err = fmt.Errorf("%s leads to %s, not %s", path, got, want)
		}
		o.LinksErr = errors.Join(o.LinksErr, err)
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
