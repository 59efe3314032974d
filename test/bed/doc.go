// Package bed is what the end-to-end suites and the benchmarks share: one
// Kubernetes node built from real parts (the kubelet, with an API server or without,
// containerd with NRI, runc, the product's programs), containers outside
// Kubernetes by ctr and by containerd's own services, and small helpers for
// processes, images and waiting.
//
// It needs Linux, root and the build tag e2e. A test binary whose TestMain calls
// [Main] runs its tests in new mount, PID and network namespaces, so that processes and
// mounts that a test leaves behind end with the namespaces, and ports are its own.
// Runs on one machine do not affect each other, up to the kernel's limit of inotify
// instances: a node needs about ten of fs.inotify.max_user_instances, which is often 128.
package bed
