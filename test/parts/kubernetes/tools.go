//go:build tools

// Package kubernetes pins the kubelet that the end-to-end suites run. It is a
// module of its own so that Kubernetes' dependencies never move ours.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kubelet"
)
