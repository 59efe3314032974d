// Package ktesting has nothing: only tests of Kubernetes import it, and the module proxy does not have it.
package ktesting
