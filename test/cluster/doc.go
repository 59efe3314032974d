// Package cluster holds the suite that installs the chart on a whole cluster of
// real parts, uses what it offers, changes it, and takes it away again: see
// cluster_test.go. It needs root.
package cluster
