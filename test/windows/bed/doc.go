//go:build e2e && linux

// Package bed runs the real containerd.exe, ctr.exe and
// containerd-shim-runhcs-v1.exe under Wine, with this project's runtime shim
// between them. Doubles of Windows' own libraries (../doubles) stand at the far
// end: what runhcs tells the Host Compute Service is written down there, and is
// what the suite looks at.
//
// Devices of Plug and Play are made and changed through Windows' own APIs by the
// program ../devices, as [Hardware] describes them, and a double of DXCore has
// their adapters; the program ../discover runs the product's discovery on them.
//
// A [Wine] is one Wine prefix, made for the run and removed after it. A [Node]
// is one containerd.exe in it with its own folder, pipes and records.
//
// Three things of Wine 8 show:
//   - the first connection to a pipe that go-winio listens on is lost, so
//     somebody makes it beforehand (the launcher for shims, [Node.Start] for
//     containerd);
//   - os.RemoveAll of Go 1.25 and later fails there ("Invalid function"), so
//     that containerd renames the bundle ID to .ID, as it always does first, and
//     then leaves it: a bundle of that name counts as removed;
//   - a container's output cannot be read, for its pipes are such listeners too.
package bed
