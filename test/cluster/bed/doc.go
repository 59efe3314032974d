// Package bed runs a whole Kubernetes cluster of one node for the cluster suite:
// etcd, the API server, the controller manager, the scheduler, the kubelet,
// containerd and runc as they are released, with a pod network by CNI.
//
// Everything is where it is by default, containerd's and the product's files too,
// in folders of the run's own that lie over the machine's, and the network is one
// of the run's own: so what the chart does to a node, it does here as it stands,
// and nothing of it is left.
//
// It is test code for Linux and root, behind the build tag e2e. A test binary
// that uses it hands its TestMain to [Main].
package bed
