// Package discovery describes the GPUs of a node, with the driver files and device nodes that a container
// needs to use them. Package pnp lists them on Windows, package dxg in Linux VMs with GPU
// paravirtualization, package nvidia adds UUIDs, and package node opens the [Source] of a node. The
// advertiser offers what it lists, and package decision finds the devices of an allocation in it.
package discovery
