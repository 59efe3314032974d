package readiness

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

const notRunning = "the NRI plugin is not running"

func isReady(context.Context) error { return nil }

// start runs a server in dir until the returned function is called.
func start(t *testing.T, dir string, ready func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, dir, ready, testutil.Quiet()) }()
	testutil.Eventually(t, "answer", func() bool { return !strings.Contains(errlog.Text(CheckPlugin(t.Context(), dir)), notRunning) })
	return func() {
		cancel()
		testutil.NoError(t, <-ended)
	}
}

func TestCheckFollowsTheServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testutil.ShortDir(t), "run")
	path := filepath.Join(dir, socketName)
	var notReady error
	stop := start(t, dir, func(context.Context) error { return notReady })
	for _, notReady = range []error{errlog.WithRemedy(errors.New("not registered"), "restart"), nil, errors.New("stuck"), nil} {
		err := CheckPlugin(t.Context(), dir)
		want := ""
		if notReady != nil {
			want = "the NRI plugin cannot work: " + errlog.Text(notReady)
		}
		if errlog.Text(err) != want || errlog.RemedyOf(err) != errlog.RemedyOf(notReady) {
			t.Errorf("%v, want %v", err, notReady)
		}
	}
	for name, want := range map[string]fs.FileMode{path: 0o600, dir: 0o700} {
		if info, err := os.Lstat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, error %v, want %v", name, info.Mode(), err, want)
		}
	}
	stop()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	testutil.CheckError(t, "after the end", CheckPlugin(t.Context(), dir), notRunning)
}

func TestCheckErrors(t *testing.T) {
	t.Parallel()
	listen := func(t *testing.T, path string) *net.UnixListener {
		t.Helper()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		testutil.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		says    string
	}{
		{name: "no socket", prepare: func(*testing.T, string) {}, says: notRunning},
		{name: "socket of a dead process", prepare: func(t *testing.T, path string) {
			l := listen(t, path)
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}, says: notRunning},
		{name: "stopped process", prepare: func(t *testing.T, path string) {
			// The kernel accepts connections for a process that does nothing.
			listen(t, path)
		}, says: "does not answer within 1s"},
		{name: "dies during the check", prepare: func(t *testing.T, path string) {
			l := listen(t, path)
			ended := make(chan struct{})
			t.Cleanup(func() { _ = l.Close(); <-ended })
			go func() {
				defer close(ended)
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_ = conn.Close()
				}
			}()
		}, says: notRunning},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := testutil.ShortDir(t)
			test.prepare(t, filepath.Join(dir, socketName))
			begin := time.Now()
			err := CheckPlugin(t.Context(), dir)
			testutil.CheckError(t, "check", err, test.says)
			if took := time.Since(begin); took > checkTimeout+time.Second {
				t.Errorf("took %s, longer than its bound of %s", took, checkTimeout)
			}
		})
	}
}

func TestServeSocketInUse(t *testing.T) {
	t.Parallel()
	dir := testutil.ShortDir(t)
	stop := start(t, dir, isReady)
	defer stop()
	if err := Serve(t.Context(), dir, nil, testutil.Quiet()); !errors.Is(err, localgrpc.ErrInUse) {
		t.Errorf("second server: %v", err)
	}
}

// TestServeRecovers: the plugin stays up when its directory cannot be used, and its socket
// is created again.
func TestServeRecovers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testutil.ShortDir(t), "run")
	testutil.NoError(t, os.WriteFile(dir, nil, 0o600))
	path := filepath.Join(dir, socketName)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	log, logged := logtest.NewNullLogger()
	go func() { ended <- Serve(ctx, dir, isReady, log) }()
	testutil.Eventually(t, "error", func() bool { return len(logged.AllEntries()) > 0 })
	for _, remove := range []string{dir, path, dir} {
		testutil.NoError(t, os.RemoveAll(remove))
		testutil.Eventually(t, "answer after "+remove+" was removed", func() bool { return CheckPlugin(t.Context(), dir) == nil })
	}
	cancel()
	testutil.NoError(t, <-ended)
}
