// Package systemd has the units of systemd. The packages install them, and dxctl installs them
// for programs in another directory.
//
// The daemons reconnect to containerd and the kubelet by themselves: the order of their starts
// does not matter. Docker and containerd start after the first CDI specification is written,
// so that containers with a restart policy find their GPU; writing it may fail.
package systemd

import "embed"

// Units are the unit files.
//
//go:embed *.service
var Units embed.FS
