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

// result is what rounds of discovery cost and leave.
type result struct {
	Rounds  int
	Devices int
	// PerRound is in nanoseconds.
	PerRound time.Duration
	// Before and After the rounds.
	Before, After usage
}

// usage is what the process holds.
type usage struct {
	Handles    uintptr
	Goroutines int
	// Private is the memory of the process, and Heap the part of it that Go's
	// collector holds, in bytes.
	Private, Heap uint64
	// Objects are the living objects of the dxcore.dll double.
	Objects int32
}

// rounds discovers n times, and finds by ID in each tenth. What is made once and kept, such as libraries, is
// made beforehand.
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
	pagefile uintptr // What is the process' own.
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

// handles tells how many handles the process has, or no fewer: Wine 8 does not
// tell, and gives out the lowest that is free. There are more of them than of
// those that are freed only now and then.
func handles() (uintptr, error) {
	var events []windows.Handle
	defer func() {
		for _, event := range events {
			_ = windows.CloseHandle(event) // Made here.
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
