// Package cluster has the suite that installs the chart on a Kubernetes cluster of one
// node, uses it, changes it, and removes it: see suite_test.go. The cluster consists of
// the released etcd, API server, controller manager, scheduler, kubelet, containerd and
// runc, with a pod network by CNI. All files are in their default places, in directories
// that are mounted over the machine's, and the network is the run's own. It needs root.
package cluster
