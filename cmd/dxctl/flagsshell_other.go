//go:build !windows

package main

import "directx-nri/cmd/dxctl/quote"

// callingShell returns the shell that this program was called from.
func callingShell() quote.Shell { return quote.Bash }
