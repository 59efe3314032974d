//go:build tools

// Package cni pins the network plugin of pods on Windows itself, as containerd's own CI uses
// it.
package cni

import _ "github.com/Microsoft/windows-container-networking/plugins/nat"
