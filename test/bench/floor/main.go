//go:build unix

// Command floor becomes another program and does nothing else: what any wrapper
// written in Go costs.
package main

import (
	"fmt"
	"os"
	"syscall"
)

// target is the other program's path, set by the linker.
var target string

func main() {
	err := syscall.Exec(target, append([]string{target}, os.Args[1:]...), os.Environ())
	fmt.Fprintf(os.Stderr, "floor: run %s: %v\n", target, err)
	os.Exit(1)
}
