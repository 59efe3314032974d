// Command testbase runs a command with WINDOWS_BASE_IMAGE set to a stand-in for Microsoft's base image, for tests:
//
//	go run ./testbase go run . -platforms windows-amd64 … images
package main

import (
	"fmt"
	"os"
	"os/exec"

	"directx-nri/tools/release/internal/basetest"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testbase:", err)
		os.Exit(1)
	}
}

func run(command []string) error {
	name, stop, err := basetest.Serve()
	if err != nil {
		return err
	}
	defer stop()
	c := exec.Command(command[0], command[1:]...)
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), "WINDOWS_BASE_IMAGE="+name), os.Stdout, os.Stderr
	return c.Run()
}
