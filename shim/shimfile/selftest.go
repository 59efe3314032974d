package shimfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

const (
	// SelfTestFlag makes the shim test itself with a sample container.
	SelfTestFlag = "--self-test"
	// SelfTestPassed is the only line that the shim prints if its self-test passes. The exit
	// status is not enough, because other programs may ignore the flag.
	SelfTestPassed = "self-test passed"
	// SelfTestParent is the environment variable with the parent directory of the self-test's files.
	SelfTestParent = "DIRECTX_NRI_SELF_TEST"

	selfTestTimeout = time.Minute
)

// ErrSelfTest means that the shim does not work on this node.
var ErrSelfTest = errors.New("the shim's self-test failed")

// SelfTest runs the self-test of the shim at path, with its files below dir. Its error matches [ErrSelfTest].
func SelfTest(ctx context.Context, path, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, selfTestTimeout)
	defer cancel()
	var stdout []byte
	// A process that was forked while the file was written has the file open for a moment
	// longer: https://go.dev/issue/22315.
	err := durable.Retry(func() (err error) {
		command := exec.CommandContext(ctx, path, SelfTestFlag)
		command.Env = append(os.Environ(), SelfTestParent+"="+dir)
		command.WaitDelay = time.Second
		stdout, err = command.Output()
		return err
	}, syscall.ETXTBSY)
	exit, hasExited := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %s: %w", ErrSelfTest, path, context.Cause(ctx))
	case hasExited:
		return fmt.Errorf("%w: %s: %w: %.500s", ErrSelfTest, path, err, errlog.OneLine(string(append(stdout, exit.Stderr...))))
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrSelfTest, path, err)
	case string(bytes.TrimSpace(stdout)) != SelfTestPassed:
		return fmt.Errorf("%w: %s: it printed %.500q instead of %q: is it %s?",
			ErrSelfTest, path, errlog.OneLine(string(stdout)), SelfTestPassed, BaseName)
	default:
		return nil
	}
}
