// Package node runs one Kubernetes node out of real parts for the end-to-end
// suite and the benchmarks: the kubelet without an API server, containerd with
// NRI, runc, and the product's two daemons and runtime shim, all below one
// temporary folder. It also runs containers without Kubernetes, by ctr and by
// containerd's own services.
//
// It is test code for Linux and root, behind the build tag e2e. A test binary
// that uses it hands its TestMain to [Main], which runs the tests in a mount
// and a PID namespace of their own: whatever a test leaves running or mounted
// is gone with the namespace, however the tests end.
package node
