//go:build windows

package shim

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// consoleMode selects what this test's program does, instead of tests.
const consoleMode = "DIRECTX_NRI_TEST_CONSOLE"

func TestMain(m *testing.M) {
	switch os.Getenv(consoleMode) {
	case "containerd":
		os.Exit(sendCtrlC())
	case "shim":
		fmt.Println("ready")
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// sendCtrlC sends Ctrl-C to all processes of its console, one of which is in a group of
// its own, and prints which have ended.
func sendCtrlC() int {
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // This process continues.
	ended := map[string]chan error{}
	for name, group := range map[string]func(*exec.Cmd) *exec.Cmd{"same": func(c *exec.Cmd) *exec.Cmd { return c }, "own": inOwnGroup} {
		command := group(exec.Command(os.Args[0]))
		command.Env = append(os.Environ(), consoleMode+"=shim")
		out, err := command.StdoutPipe()
		if err == nil {
			err = command.Start()
		}
		if err == nil {
			_, err = bufio.NewReader(out).ReadString('\n')
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		defer func() { _ = command.Process.Kill() }()
		done := make(chan error, 1)
		ended[name] = done
		go func() { done <- command.Wait() }()
	}
	if err := windows.GenerateConsoleCtrlEvent(windows.CTRL_C_EVENT, 0); err != nil {
		fmt.Println(err)
		return 1
	}
	select {
	case <-ended["same"]:
		fmt.Println("same group ended")
	case <-time.After(20 * time.Second):
	}
	select {
	case <-ended["own"]:
		fmt.Println("own group ended")
	case <-time.After(time.Second):
	}
	return 0
}
