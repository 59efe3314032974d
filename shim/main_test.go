//go:build linux

package shim

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// The names that select what this test's program does: our shim, our shim with a
// panic, and the real shim.
const (
	ourName    = "containerd-shim-directx-v1"
	brokenName = "broken-shim"
	realName   = "containerd-shim-runc-v2"
)

func TestMain(m *testing.M) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	switch filepath.Base(self) {
	case ourName:
		os.Exit(Main("test", hostfiles.Root("")))
	case brokenName:
		s := shim{program: self, args: os.Args[1:], env: os.Environ(), bundle: ".", stateDir: paths.Default().State, stderr: os.Stderr}
		// It has no files, so it panics when it reads them.
		os.Exit(s.main())
	case realName:
		os.Exit(realMain())
	}
	os.Exit(m.Run())
}

// realCall is what the real shim was called with.
type realCall struct {
	Args  []string
	Stdin string
	Mark  string // of the environment
	Dir   string
}

// realMain is the real shim: it prints its call.
func realMain() int {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 99
	}
	dir, err := os.Getwd()
	if err != nil {
		return 99
	}
	out, err := json.Marshal(realCall{Args: os.Args[1:], Stdin: string(stdin), Mark: os.Getenv("MARK"), Dir: dir})
	if err != nil {
		return 99
	}
	fmt.Printf("%s", out)
	fmt.Fprint(os.Stderr, os.Getenv("REAL_STDERR"))
	status, _ := strconv.Atoi(os.Getenv("REAL_STATUS")) // 0 when there is none
	return status
}
