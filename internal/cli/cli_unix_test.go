//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

//nolint:paralleltest // The signals are for the process.
func TestSignalsStop(t *testing.T) {
	for _, stop := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(stop) {
			continue
		}
		isStopped := false
		Main(&cobra.Command{DisableFlagParsing: true, Args: cobra.ArbitraryArgs, RunE: func(c *cobra.Command, _ []string) error {
			testutil.NoError(t, syscall.Kill(os.Getpid(), stop))
			select {
			case <-c.Context().Done():
				isStopped = true
			case <-time.After(testutil.Timeout):
			}
			return nil
		}})
		if !isStopped {
			t.Errorf("%s does not stop the command", stop)
		}
	}
}
