//go:build tools

// Package kubernetes pins the kubelet that the end-to-end suites run, and with
// it the rest of a cluster. It is a module of its own so that Kubernetes'
// dependencies never move ours.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
