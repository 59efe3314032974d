package service

import (
	"context"
	"io"
)

// Advertiser is the name of directx-advertiser's service.
const Advertiser = "directx-advertiser"

// Daemon is a daemon of directx-nri that the service manager of Windows runs.
type Daemon struct {
	Name, Description string
	// Program is an absolute path.
	Program string
	Args    []string
}

// Main is the part of a daemon's main function that a service manager can start. It
// runs until ctx ends, logs to log, and returns the exit status.
type Main func(ctx context.Context, log io.Writer) (status int)
