//go:build windows

// The command restart restarts a node's containerd, for dxctl's --restart-command. It
// requests the restart from the suite, whose child containerd is.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "restart: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: restart ADDRESS")
	}
	suite, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	defer suite.Close()
	answer, err := io.ReadAll(suite)
	if err != nil {
		return err
	}
	if string(answer) != "restarted" {
		return errors.New(string(answer))
	}
	return nil
}
