//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// maxPacket is the longest message to the host.
const maxPacket = 128 << 10

// maxAdapters is how many adapters ENUMADAPTERS2 enumerates at most.
const maxAdapters = 64

// device is the file that stands for /dev/dxg.
type device struct {
	fs.Inode
	path string // of the scenario file

	mu       sync.Mutex
	loaded   os.FileInfo
	scenario scenario
	files    int
	next     uint32
	// open are handles that are open now, leaked those that were open when their file
	// was closed.
	open, leaked int
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

// Getxattr returns the numbers of open files, open handles and leaked handles.
func (d *device) Getxattr(_ context.Context, name string, dest []byte) (uint32, syscall.Errno) {
	if name != "user.open" {
		return 0, syscall.ENODATA
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	text := fmt.Sprintf("files %d, handles %d, leaked %d", d.files, d.open, d.leaked)
	if len(dest) < len(text) {
		return uint32(len(text)), syscall.ERANGE
	}
	return uint32(copy(dest, text)), 0
}

func (f *file) Release(context.Context) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files--
	f.open -= len(f.handles)
	f.leaked += len(f.handles)
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
	switch {
	case command == enumAdapters2Command:
		return 0, f.enumerate2(memory, in, out)
	case command == enumAdapters3Command && !f.scenario.NoEnumAdapters3:
		return 0, f.enumerate3(memory, in, out)
	case command == openAdapterFromLUIDCommand:
		var args openAdapterFromLUID
		decode(in, &args)
		a := f.scenario.find(args.LUID.number())
		if a == nil {
			return 0, syscall.EINVAL
		}
		args.Handle = f.openHandle(a.LUID)
		copy(out, encode(args))
		return 0, 0
	case command == closeAdapterCommand:
		var args closeAdapter
		decode(in, &args)
		if _, found := f.handles[args.Handle]; !found && args.Handle != 0 {
			return 0, syscall.EINVAL
		}
		f.closeHandle(args.Handle)
		return 0, 0
	case command == queryAdapterInfoCommand:
		return 0, f.query(memory, in)
	}
	return 0, syscall.ENOTTY
}

func (f *file) enumerate2(m memory, in, out []byte) syscall.Errno {
	var args enumAdapters2
	decode(in, &args)
	list := f.visible(false)
	switch {
	case f.scenario.EnumErrno != 0:
		return f.scenario.EnumErrno
	case args.Adapters == 0:
		args.Count = f.scenario.count(len(list))
		copy(out, encode(args))
		return 0
	case int(args.Count) < len(list):
		return syscall.EOVERFLOW
	case args.Count > maxAdapters:
		return syscall.EINVAL
	}
	args.Count = f.scenario.count(len(list))
	copy(out, encode(args))
	return f.writeInfos(m, args.Adapters, list)
}

// enumerate3 lists compute-only adapters only if the filter asks for them, as Windows'
// documentation says. The driver ignores the filter.
func (f *file) enumerate3(m memory, in, out []byte) syscall.Errno {
	var args enumAdapters3
	decode(in, &args)
	list := f.visible(args.Filter&includeComputeOnly != 0)
	room := int(args.Count)
	args.Count = f.scenario.count(len(list))
	copy(out, encode(args))
	switch {
	case f.scenario.EnumErrno != 0:
		return f.scenario.EnumErrno
	case args.Adapters == 0 || room == 0:
		return 0
	case room > 0xFFFF:
		return syscall.EINVAL
	case room < len(list):
		return 0 // The count alone.
	}
	return f.writeInfos(m, args.Adapters, list)
}

// visible returns the LUIDs of the adapters.
func (f *file) visible(withComputeOnly bool) (luids []uint64) {
	for _, a := range f.scenario.Adapters {
		if withComputeOnly || a.Type&computeOnly == 0 {
			luids = append(luids, a.LUID)
		}
	}
	return luids
}

// writeInfos opens adapters and writes them to the caller.
func (f *file) writeInfos(m memory, address uint64, luids []uint64) syscall.Errno {
	infos := make([]adapterInfo, len(luids))
	for i, id := range luids {
		infos[i] = adapterInfo{Handle: f.openHandle(id), LUID: luid{Low: uint32(id), High: uint32(id >> 32)}}
	}
	if len(infos) > 0 && !m.write(address, encode(infos)) {
		for _, info := range infos {
			f.closeHandle(info.Handle)
		}
		return syscall.EINVAL
	}
	return 0
}

func (f *file) query(m memory, in []byte) syscall.Errno {
	var args queryAdapterInfo
	decode(in, &args)
	id, found := f.handles[args.Handle]
	if !found || args.Size == 0 || args.Size > maxPacket {
		return syscall.EINVAL
	}
	a := f.scenario.find(id)
	if a == nil {
		return syscall.ENODEV
	}
	buffer := make([]byte, args.Size)
	if !m.read(args.Data, buffer) {
		return syscall.EINVAL
	}
	if errno := f.scenario.query(a, args.Type, buffer); errno != 0 {
		return errno
	}
	if !m.write(args.Data, buffer) {
		return syscall.EINVAL
	}
	return 0
}

// openHandle returns a new handle. Its lower 6 bits are zero in the double.
func (f *file) openHandle(id uint64) uint32 {
	f.next += 1 << 6
	f.handles[f.next] = id
	f.open++
	return f.next
}

func (f *file) closeHandle(handle uint32) {
	if _, found := f.handles[handle]; found {
		delete(f.handles, handle)
		f.open--
	}
}

func (l luid) number() uint64 { return uint64(l.High)<<32 | uint64(l.Low) }

// memory is that of the process with this ID.
type memory int

func (m memory) read(address uint64, data []byte) bool {
	return m.copied(unix.ProcessVMReadv, address, data)
}

func (m memory) write(address uint64, data []byte) bool {
	return m.copied(unix.ProcessVMWritev, address, data)
}

// copied calls a function that copies between data and the process, and reports whether
// all was copied.
func (m memory) copied(call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), address uint64, data []byte) bool {
	local := []unix.Iovec{{Base: &data[0], Len: uint64(len(data))}}
	n, err := call(int(m), local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}, 0)
	return err == nil && n == len(data)
}
