//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// maxPacket is the longest message to the host.
const maxPacket = 128 << 10

// device is the file that stands for /dev/dxg.
type device struct {
	fs.Inode
	path string // of the scenario file

	mu       sync.Mutex
	loaded   os.FileInfo
	scenario scenario
	files    int
	next     uint32
}

// file is one open of the device, with the LUIDs of its handles. In the driver, handles
// belong to the process.
type file struct {
	*device
	handles map[uint32]uint64
}

func (d *device) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files++
	return &file{d, make(map[uint32]uint64)}, fuse.FOPEN_DIRECT_IO, 0
}

func (*device) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o666
	return 0
}

// Getxattr returns the number of open files.
func (d *device) Getxattr(_ context.Context, name string, dest []byte) (uint32, syscall.Errno) {
	if name != "user.open" {
		return 0, syscall.ENODATA
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	text := fmt.Sprintf("files %d", d.files)
	if len(dest) < len(text) {
		return uint32(len(text)), syscall.ERANGE
	}
	return uint32(copy(dest, text)), 0
}

func (f *file) Release(context.Context) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files--
	return 0
}

// load reads the scenario again if its file changed.
func (d *device) load() error {
	info, err := os.Stat(d.path)
	if err != nil {
		return err
	}
	if d.loaded != nil && os.SameFile(info, d.loaded) && info.ModTime().Equal(d.loaded.ModTime()) {
		return nil
	}
	data, err := os.ReadFile(d.path)
	if err != nil {
		return err
	}
	next := scenario{}
	if err := json.Unmarshal(data, &next); err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	d.loaded, d.scenario = info, next
	return nil
}

// Ioctl answers as dxgkrnl does. The kernel has copied the structure that the argument
// points to, as the ioctl's number says; what that points to is read and written here.
func (f *file) Ioctl(ctx context.Context, command uint32, _ uint64, in, out []byte) (int32, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.load(); err != nil {
		fmt.Fprintln(os.Stderr, "dxg double:", err)
		return 0, syscall.EIO
	}
	caller, _ := fuse.FromContext(ctx)
	memory := memory(caller.Pid)
	switch command {
	case enumAdapters3Command:
		var args enumAdapters3
		decode(in, &args)
		errno := f.enumerate(memory, &args.Count, args.Adapters, args.Filter&1 != 0)
		copy(out, encode(args))
		return 0, errno
	case queryAdapterInfoCommand:
		return 0, f.query(memory, in)
	}
	return 0, syscall.ENOTTY
}

// enumerate opens the adapters and writes them to address, for which count has the room
// and then the number. An address of 0 asks for the number alone. Compute-only adapters
// are left out unless they are asked for, as Windows' documentation says; the driver
// never does.
func (f *file) enumerate(m memory, count *uint32, address uint64, withComputeOnly bool) syscall.Errno {
	var infos []adapterInfo
	for _, a := range f.scenario.Adapters {
		if withComputeOnly || a.Type&computeOnly == 0 {
			infos = append(infos, adapterInfo{LUIDLow: uint32(a.LUID), LUIDHigh: uint32(a.LUID >> 32)})
		}
	}
	room := int(*count)
	*count = uint32(len(infos))
	switch {
	case address == 0 || len(infos) == 0:
		return 0
	case room < len(infos):
		return 0
	case room > 0xFFFF:
		return syscall.EINVAL
	}
	for i := range infos {
		infos[i].Handle = f.openHandle(uint64(infos[i].LUIDHigh)<<32 | uint64(infos[i].LUIDLow))
	}
	if !m.write(address, encode(infos)) {
		return syscall.EINVAL
	}
	return 0
}

func (f *file) query(m memory, in []byte) syscall.Errno {
	var args queryAdapterInfo
	decode(in, &args)
	luid, found := f.handles[args.Handle]
	if !found || args.Size == 0 || args.Size > maxPacket {
		return syscall.EINVAL
	}
	at := slices.IndexFunc(f.scenario.Adapters, func(a adapter) bool { return a.LUID == luid })
	if at < 0 {
		return syscall.ENODEV
	}
	buffer := make([]byte, args.Size)
	if !m.read(args.Data, buffer) {
		return syscall.EINVAL
	}
	if errno := f.scenario.Adapters[at].query(args.Type, buffer); errno != 0 {
		return errno
	}
	if !m.write(args.Data, buffer) {
		return syscall.EINVAL
	}
	return 0
}

// openHandle returns a new handle. In the double its lowest 6 bits are zero.
func (f *file) openHandle(luid uint64) uint32 {
	f.next += 1 << 6
	f.handles[f.next] = luid
	return f.next
}

// memory is that of the process with this ID.
type memory int

func (m memory) read(address uint64, data []byte) bool {
	local, remote := vectors(address, data)
	n, err := unix.ProcessVMReadv(int(m), local, remote, 0)
	return err == nil && n == len(data)
}

func (m memory) write(address uint64, data []byte) bool {
	local, remote := vectors(address, data)
	n, err := unix.ProcessVMWritev(int(m), local, remote, 0)
	return err == nil && n == len(data)
}

func vectors(address uint64, data []byte) ([]unix.Iovec, []unix.RemoteIovec) {
	return []unix.Iovec{{Base: &data[0], Len: uint64(len(data))}}, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}
}
