//go:build tools

// Package kubernetesnew pins the newest kubelet.
package kubernetesnew

import (
	_ "k8s.io/kubernetes/cmd/kubelet"
)
