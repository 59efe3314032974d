//go:build linux

// Program double is a test double of /dev/dxg at the system call: a file whose ioctls
// answer as Microsoft's dxgkrnl driver does. It is mounted by FUSE:
//
//	double SCENARIO FILE
//
// SCENARIO is a JSON file of the adapters, and of how they misbehave. Replace it with a
// rename to change them meanwhile. FILE exists and is no directory, such as /dev/dxg; the
// double is mounted on it until SIGTERM. FILE's extended attribute user.open has the
// number of open files. It needs root.
//
// The structures are declared here from Microsoft's headers, apart from the product's,
// so that an error in the one is not in the other. What the driver does is in
// drivers/hv/dxgkrnl of microsoft/WSL2-Linux-Kernel, what the host answers in Microsoft's
// documentation of D3DKMTQueryAdapterInfo and in microsoft/libdxg.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dxg double:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want two arguments, SCENARIO and FILE")
	}
	scenario, path := args[0], args[1]
	device := &device{path: scenario}
	if err := device.load(); err != nil {
		return err
	}
	// A file system begins with a directory: only its file is mounted on path.
	dir, err := os.MkdirTemp("", "dxg")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, AllowOther: true, FsName: "dxg", Name: "dxg"},
		OnAdd: func(ctx context.Context) {
			root.AddChild("dxg", root.NewPersistentInode(ctx, device, fs.StableAttr{Mode: syscall.S_IFREG}), false)
		},
	})
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	err = syscall.Mount(filepath.Join(dir, "dxg"), path, "", syscall.MS_BIND, "")
	if err := errors.Join(err, syscall.Unmount(dir, syscall.MNT_DETACH)); err != nil {
		return fmt.Errorf("mount on %s: %w", path, err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		_ = syscall.Unmount(path, syscall.MNT_DETACH) // Files that are open keep it alive.
	}()
	server.Wait()
	return nil
}
