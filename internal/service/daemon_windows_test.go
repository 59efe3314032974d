package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

const testDaemon = "directx-nri-test"

// TestMain is also the main function of the services of TestDaemon and TestRestart.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serviceArgument {
		runService(os.Args[2])
		return
	}
	status, started := Run(testDaemon, func(ctx context.Context, log io.Writer) int {
		fmt.Fprintln(log, "level=info msg=starts")
		dir := os.Args[1]
		f, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString("x")
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return 4
		}
		for {
			select {
			case <-ctx.Done():
				return 0
			case <-time.After(50 * time.Millisecond):
			}
			if os.Remove(filepath.Join(dir, "crash")) == nil {
				return 3
			}
		}
	})
	if !started {
		status = m.Run()
	}
	os.Exit(status) //nolint:forbidigo // This is a main function.
}

// It runs on Windows and under Wine, whose service manager does not restart a service.
func TestDaemon(t *testing.T) {
	t.Parallel()
	if !windows.GetCurrentProcessToken().IsElevated() {
		t.Skip("only administrators can install services")
	}
	wine := windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
	dir := t.TempDir()
	self, err := os.Executable()
	testutil.NoError(t, err)
	data, err := os.ReadFile(self)
	testutil.NoError(t, err)
	d := Daemon{Name: testDaemon, Description: "A test", Program: filepath.Join(dir, testDaemon+".exe"), Args: []string{dir}}
	testutil.WriteFile(t, d.Program, string(data), 0o700)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	t.Cleanup(func() {
		if _, err := d.Uninstall(ctx); err != nil {
			t.Error(err)
		}
	})
	state := func(want svc.State) {
		t.Helper()
		err := withService(testDaemon, func(s *mgr.Service) error {
			_, err := waitWhile(ctx, s, func(state svc.State) bool { return state != want })
			return err
		})
		if err != nil {
			t.Fatalf("state %s: %v", stateNames[want], err)
		}
	}
	starts := func(want int) {
		t.Helper()
		testutil.Eventually(t, fmt.Sprint(want, " starts"), func() bool {
			data, _ := os.ReadFile(filepath.Join(dir, "starts"))
			return len(data) == want
		})
	}
	for n := 1; n <= 2; n++ { // The second installation replaces the first.
		testutil.NoError(t, d.Install(ctx))
		state(svc.Running)
		starts(n)
	}
	testutil.NoError(t, stop(ctx, testDaemon))
	state(svc.Stopped)
	testutil.NoError(t, start(ctx, testDaemon))
	starts(3)
	testutil.WriteFile(t, filepath.Join(dir, "crash"), "", 0o600)
	if wine {
		state(svc.Stopped)
	} else {
		starts(4)
		err := withService(testDaemon, func(s *mgr.Service) error {
			config, err := s.Config()
			if !config.DelayedAutoStart {
				t.Error("no delayed start")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, want := range []bool{true, false} { // There is none the second time.
		if removed, err := d.Uninstall(ctx); removed != want || err != nil {
			t.Fatal(removed, err)
		}
	}

	// One that runs another program is left alone.
	manager, err := mgr.Connect()
	testutil.NoError(t, err)
	foreign, err := manager.CreateService(testDaemon, `C:\k\nssm.exe`, mgr.Config{})
	testutil.NoError(t, err)
	_, uninstallErr := d.Uninstall(ctx)
	for name, err := range map[string]error{"install": d.Install(ctx), "uninstall": uninstallErr} {
		if !errors.Is(err, errForeign) || !strings.Contains(err.Error(), "nssm.exe") {
			t.Errorf("%s: %v", name, err)
		}
	}
	testutil.NoError(t, foreign.Delete(), foreign.Close(), manager.Disconnect())
}
