//go:build tools

// Package helm pins the helm that checks, renders and installs the chart. It is a
// module of its own so that its dependencies never move ours.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
