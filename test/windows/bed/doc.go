//go:build e2e && linux

// Package bed runs the real containerd.exe, ctr.exe and
// containerd-shim-runhcs-v1.exe under Wine with the runtime shim between them.
// Doubles of Windows' own libraries (../doubles) stand at the far end. They record
// what runhcs requests from the Host Compute Service, which is what the tests check.
//
// [Wine.Plug] writes Plug and Play devices to the registry, where Wine's setupapi.dll finds
// them, and a double of DXCore has their adapters. The program ../discover runs the
// product's discovery on them.
//
// A [Wine] is a Wine prefix, removed after the run. A [Node] is a containerd.exe in it,
// with a directory and pipes of its own.
//
// Limits of Wine 8:
//   - the first connection to a pipe that go-winio listens on is lost, so the launcher
//     (for shims) and [Node.Start] (for containerd) connect once;
//   - os.RemoveAll of Go 1.25 and later fails ("Invalid function"). containerd renames
//     the bundle ID to .ID first and leaves that, so a bundle of that name counts as
//     removed;
//   - a container's output cannot be read, because its pipes are such listeners too.
package bed
