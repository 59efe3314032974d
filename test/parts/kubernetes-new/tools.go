//go:build tools

// Package kubernetesnew pins the newest kubelet that can be built. 1.38.0-beta.0 requires modules that the module
// proxy does not have: k8s.io/ktesting v0.38.0-beta.0, sigs.k8s.io/iptables-wrappers v1.0.0 and
// sigs.k8s.io/structured-merge-diff/v7 v7.0.1.
package kubernetesnew

import (
	_ "k8s.io/kubernetes/cmd/kubelet"
)
