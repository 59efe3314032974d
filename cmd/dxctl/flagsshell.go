package main

import (
	"strings"

	"directx-nri/cmd/dxctl/quote"
)

// shellOf returns the shell that a program on Windows is, by its file's name. Of
// those that are not known, cmd.exe's quotes are what most others read too.
func shellOf(program string) quote.Shell {
	switch strings.TrimSuffix(strings.ToLower(program), ".exe") {
	case "powershell", "powershell_ise", "pwsh":
		return quote.PowerShell
	case "bash", "sh", "zsh", "dash":
		return quote.Bash
	}
	return quote.Cmd
}
