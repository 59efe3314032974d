package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"

	"directx-nri/discovery/pnp"
)

// result has the time and the resources of rounds of discovery.
type result struct {
	Rounds  int
	Devices int
	// PerRound is in nanoseconds.
	PerRound time.Duration
	// Before and After the rounds.
	Before, After usage
}

// usage is what the process holds. Memory is in bytes.
type usage struct {
	Handles    uintptr
	Goroutines int
	// Private is the memory of the process, and Heap the part of Go's collector.
	Private, Heap uint64
	// Objects are the objects of the dxcore.dll double.
	Objects int32
}

// rounds discovers n times, with a lookup in each tenth round, after some rounds that load
// libraries.
func rounds(ctx context.Context, system pnp.System, n int) (result, error) {
	r := result{Rounds: n}
	round := func(i int) error {
		snapshot, err := system.Snapshot(ctx)
		if err != nil {
			return fmt.Errorf("discover: %w", err)
		}
		devices := pnp.Devices(snapshot)
		r.Devices = len(devices)
		var ids []string
		for _, d := range devices {
			ids = append(ids, d.InstanceID)
		}
		if i%10 != 0 {
			return nil
		}
		if _, err := system.Find(ctx, ids); err != nil {
			return fmt.Errorf("find: %w", err)
		}
		return nil
	}
	for i := range 1 + n/20 {
		if err := round(i); err != nil {
			return r, err
		}
	}
	var err error
	if r.Before, err = measure(); err != nil {
		return r, err
	}
	begin := time.Now()
	for i := range n {
		if err := round(i); err != nil {
			return r, err
		}
	}
	r.PerRound = time.Since(begin) / time.Duration(max(n, 1))
	r.After, err = measure()
	return r, err
}

// memoryCounters is PROCESS_MEMORY_COUNTERS.
// https://learn.microsoft.com/windows/win32/api/psapi/ns-psapi-process_memory_counters
type memoryCounters struct {
	size     uint32
	faults   uint32
	others   [6]uintptr
	pagefile uintptr // private memory
	peak     uintptr
}

func measure() (usage, error) {
	u := usage{Goroutines: runtime.NumGoroutine()}
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	u.Heap = stats.HeapAlloc
	memory := memoryCounters{size: uint32(unsafe.Sizeof(memoryCounters{}))}
	kernel32 := windows.NewLazySystemDLL("kernel32.dll")
	if ok, _, err := kernel32.NewProc("K32GetProcessMemoryInfo").Call(uintptr(windows.CurrentProcess()), uintptr(unsafe.Pointer(&memory)), uintptr(memory.size)); ok == 0 {
		return u, fmt.Errorf("K32GetProcessMemoryInfo: %w", err)
	}
	u.Private = uint64(memory.pagefile)
	if objects := windows.NewLazySystemDLL("dxcore.dll").NewProc("DXCoreDoubleObjects"); objects.Find() == nil {
		n, _, _ := objects.Call()
		u.Objects = int32(n)
	}
	var err error
	u.Handles, err = handles()
	return u, err
}

// handles returns an upper bound of the number of handles: Wine 8 does not report it, and
// allocates the lowest free one. Some are freed with a delay.
func handles() (uintptr, error) {
	var events []windows.Handle
	defer func() {
		for _, event := range events {
			_ = windows.CloseHandle(event)
		}
	}()
	for range 16 {
		event, err := windows.CreateEvent(nil, 0, 0, nil)
		if err != nil {
			return 0, fmt.Errorf("CreateEvent: %w", err)
		}
		events = append(events, event)
	}
	return uintptr(slices.Max(events)) / 4, nil
}
