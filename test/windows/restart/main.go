//go:build windows

// The command restart restarts a node's containerd, for dxctl's --restart-command. It
// requests the restart from the suite, whose child containerd is. With "service" it is
// the service of containerd, which is its child, as that of nssm is.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"

	"golang.org/x/sys/windows/svc"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "restart: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 1 && args[0] == "service" {
		return svc.Run("", handler{args[1:]})
	}
	if len(args) != 1 {
		return errors.New("usage: restart ADDRESS, or restart service PROGRAM [ARGUMENT...]")
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

// handler runs a program as the service.
type handler struct{ command []string }

func (h handler) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	program := exec.Command(h.command[0], h.command[1:]...)
	if err := program.Start(); err != nil {
		return false, 1
	}
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop}
	for request := range requests {
		if request.Cmd == svc.Stop {
			status <- svc.Status{State: svc.StopPending}
			_ = program.Process.Kill() // An error means that it has ended.
			_ = program.Wait()
			return false, 0
		}
		status <- request.CurrentStatus
	}
	return false, 0
}
