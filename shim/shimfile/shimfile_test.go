package shimfile

import (
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

// What this test's program does in its self-test, by the name of the directory of the self-test's files.
const (
	good    = "good"
	broken  = "broken"
	chatty  = "chatty"
	wrong   = "something else"
	hanging = "hanging"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == SelfTestFlag {
		os.Exit(actAsShim()) //nolint:forbidigo // this process is the shim's
	}
	m.Run()
}

func actAsShim() int {
	switch filepath.Base(os.Getenv(SelfTestParent)) {
	case good:
		fmt.Println(SelfTestPassed)
	case broken:
		fmt.Fprintln(os.Stderr, "I am\nbroken")
		return 1
	case chatty:
		fmt.Printf("hello\n%s\n", SelfTestPassed)
	case hanging:
		time.Sleep(time.Hour)
	}
	return 0
}

func TestSelfTest(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	testutil.NoError(t, err)
	for does, says := range map[string]string{
		good:    "",
		broken:  "I am broken",
		chatty:  `it printed "hello self-test passed" instead of "self-test passed"`,
		wrong:   "is it containerd-shim-directx-v1?",
		hanging: context.DeadlineExceeded.Error(),
	} {
		t.Run(does, func(t *testing.T) {
			t.Parallel()
			timeout := testutil.Timeout
			if does == hanging {
				timeout = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			err := SelfTest(ctx, self, filepath.Join(t.TempDir(), does))
			testutil.CheckError(t, "self-test", err, says)
			if err != nil && (!errors.Is(err, ErrSelfTest) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("error %q, want %v in one line", err, ErrSelfTest)
			}
		})
	}
}
