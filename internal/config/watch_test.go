package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestWatchFiles(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string) { t.Helper(); must(os.WriteFile(in(name), []byte(text), 0o600)) }
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var calls atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watchFiles(ctx, []string{in("file"), in("new/file"), in("volume/file")}, time.Minute, func() { calls.Add(1) })
		}()
		synctest.Wait()
		step := func(what string, wait time.Duration, want int64) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if got := calls.Swap(0); got != want {
				t.Errorf("%s: %d calls, want %d", what, got, want)
			}
		}
		const soon = 2*pollInterval + time.Millisecond
		step("start", 0, 1)
		write("other", "1")
		step("another file", soon, 0)
		write("file", "1")
		step("created", soon, 1)
		for _, text := range []string{"22", "333", "4444"} { // in several steps
			write("file", text)
			time.Sleep(pollInterval)
		}
		step("written", soon, 1)
		write("next", "55555")
		must(os.Rename(in("next"), in("file")))
		step("replaced", soon, 1)
		must(os.Remove(in("file")))
		step("removed", soon, 1)
		must(os.Mkdir(in("new"), 0o700))
		write("new/file", "1")
		step("created with its directory", soon, 1)
		if runtime.GOOS != "windows" { // Wine has no symbolic links.
			for _, version := range []string{"..1", "..22"} {
				must(os.MkdirAll(in("volume/"+version), 0o700))
				write("volume/"+version+"/file", version)
				must(os.Symlink(version, in("volume/..data_tmp")), os.Rename(in("volume/..data_tmp"), in("volume/..data")))
				if version == "..1" {
					must(os.Symlink("..data/file", in("volume/file")))
				}
				step("a volume with "+version, soon, 1)
			}
		}
		step("interval", time.Minute+soon, 1)
		cancel()
		<-ended
	})
}
