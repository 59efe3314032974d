//go:build !chart && unix

package deployments

import "testing"

// renderValues returns nothing: only the tests with the tag chart have helm.
func renderValues(*testing.T) map[string][]byte { return map[string][]byte{} }
