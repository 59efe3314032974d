// Package advertiser is the daemon directx-advertiser: it offers the GPUs that package discovery finds to
// the kubelet, as replicas of resources, and records what the kubelet allocates. Its answer to an
// allocation has no GPU but an interlock: package nri or package shim makes the edits when the
// container is created. With kubelet injection, the answer has the edits themselves.
package advertiser
