//go:build unix

package cli

import "os"

const administratorName = "root"

func isAdministrator() bool { return os.Geteuid() == 0 }
