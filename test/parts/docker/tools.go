//go:build tools

package tools

import (
	_ "github.com/docker/cli/cmd/docker"
	_ "github.com/docker/docker/cmd/dockerd"
	_ "github.com/docker/docker/cmd/docker-proxy"
)
