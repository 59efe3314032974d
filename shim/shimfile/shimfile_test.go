package shimfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// mark precedes the word at the end of a copy of this test's program that says what the copy
// does in its self-test.
const mark = "\nshim made for a test: "

// What a copy does.
const (
	good    = "good"
	broken  = "broken"
	chatty  = "chatty"
	wrong   = "something else"
	hanging = "hanging"
)

func TestMain(m *testing.M) {
	// Otherwise each process waits a second at its end with the race detector.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if len(os.Args) == 2 && os.Args[1] == SelfTestFlag {
		os.Exit(actAsShim()) //nolint:forbidigo // this process is the shim's
	}
	m.Run()
}

// actAsShim is what a copy of this program does.
func actAsShim() int {
	self, err := os.Executable()
	if err != nil {
		return 3
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return 3
	}
	_, does, _ := strings.Cut(string(program[bytes.LastIndex(program, []byte(mark)):]), mark)
	if dir := os.Getenv(SelfTestParent); filepath.Base(dir) != "files" {
		fmt.Fprintln(os.Stderr, "the files of the self-test are in "+dir)
		return 1
	}
	switch does {
	case broken:
		fmt.Fprintln(os.Stderr, "I am\nbroken")
		return 1
	case chatty:
		fmt.Println("hello")
	case hanging:
		time.Sleep(time.Hour)
	case wrong:
		return 0
	}
	fmt.Println(SelfTestPassed)
	return 0
}

// program writes a copy of this test's program that does what its mark says, and returns its path.
func program(t *testing.T, does string) string {
	t.Helper()
	self, err := os.Executable()
	testutil.NoError(t, err)
	data, err := os.ReadFile(self)
	testutil.NoError(t, err)
	path := filepath.Join(t.TempDir(), FileName())
	testutil.WriteFile(t, path, string(data)+mark+does, 0o700)
	return path
}

func TestSelfTest(t *testing.T) {
	t.Parallel()
	for does, says := range map[string]string{
		good:    "",
		broken:  "I am broken",
		chatty:  `it printed "hello self-test passed" instead of "self-test passed"`,
		wrong:   "is it containerd-shim-directx-v1?",
		hanging: context.DeadlineExceeded.Error(),
	} {
		t.Run(does, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), testutil.Timeout)
			defer cancel()
			if does == hanging {
				ctx, cancel = context.WithTimeout(ctx, 2*time.Second) // After the self-test has begun, also on a busy machine.
				defer cancel()
			}
			err := SelfTest(ctx, program(t, does), filepath.Join(t.TempDir(), "files"))
			testutil.CheckError(t, "self-test", err, says)
			if err != nil && (!errors.Is(err, ErrSelfTest) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %q, want %v in one line", err, ErrSelfTest)
			}
		})
	}
}
