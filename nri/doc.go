// Package nri is the NRI plugin, for pods on Linux: containerd calls it when it creates a container.
// The plugin reads what the container presents, lets package decision decide what it gets, and returns
// the edits as a ContainerAdjustment. [Plugin] has the hooks, and [Plugin.Run] keeps it registered.
package nri
