//go:build tools

// Package kubernetesnew pins the newest kubelet. The module proxy does not have three of the modules that
// 1.38.0-beta.0 requires: the directories beside this file and structured-merge-diff v7.0.0 take their places.
package kubernetesnew

import (
	_ "k8s.io/kubernetes/cmd/kubelet"
)
