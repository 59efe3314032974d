package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// serviceArgument makes this program a service that starts and stops in the time that follows.
const serviceArgument = "--service-of-a-test"

// TestMain is also the main function of the services of TestRestart.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == serviceArgument {
		runService(os.Args[2])
		return
	}
	os.Exit(m.Run()) //nolint:forbidigo // This is a main function.
}

func runService(pause string) {
	duration, err := time.ParseDuration(pause)
	if err == nil {
		err = svc.Run("", stopHandler{duration})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

type stopHandler struct{ pause time.Duration }

func (h stopHandler) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	status <- svc.Status{State: svc.StartPending}
	time.Sleep(h.pause)
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop}
	for request := range requests {
		switch request.Cmd {
		case svc.Stop:
			status <- svc.Status{State: svc.StopPending}
			time.Sleep(h.pause)
			return false, 0
		case svc.Interrogate:
			status <- request.CurrentStatus
		}
	}
	return false, 0
}

// install installs and starts a service, and returns a function that returns its process,
// 0 if it does not run.
func install(t *testing.T, name string, pause time.Duration, config mgr.Config) (pid func() uint32) {
	t.Helper()
	self, err := os.Executable()
	testutil.NoError(t, err)
	manager, err := mgr.Connect()
	testutil.NoError(t, err)
	service, err := manager.CreateService(name, self, config, serviceArgument, pause.String())
	testutil.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(stop(ctx, name), service.Delete(), service.Close(), manager.Disconnect()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	testutil.NoError(t, service.Start())
	return func() uint32 {
		for range 100 {
			status, err := service.Query()
			testutil.NoError(t, err)
			if status.State == svc.Running {
				return status.ProcessId
			}
			time.Sleep(pollInterval)
		}
		return 0
	}
}

func TestRestart(t *testing.T) {
	containerd := install(t, "dxtest-containerd", 0, mgr.Config{})
	kubelet := install(t, "dxtest-kubelet", 0, mgr.Config{Dependencies: []string{"dxtest-containerd"}, StartType: mgr.StartAutomatic})
	proxy := install(t, "dxtest-proxy", 0, mgr.Config{Dependencies: []string{"dxtest-kubelet"}, StartType: mgr.StartManual})
	service := managedService("dxtest-containerd")
	before := []uint32{containerd(), kubelet(), proxy()}
	dependents, err := service.dependents(svc.Active)
	wine := windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil && len(dependents) == 0
	if wine {
		before = before[:1] // Wine lists no dependents, and stops services under dependent ones.
	} else if err != nil || !slices.Equal(dependents, []string{"dxtest-proxy", "dxtest-kubelet"}) {
		t.Fatalf("dependents %q, %v", dependents, err)
	}
	testutil.NoError(t, service.Restart(t.Context()))
	after := []uint32{containerd(), kubelet(), proxy()}
	for i, was := range before {
		if after[i] == was {
			t.Errorf("service %d still has process %d", i, was)
		}
	}
	if slices.Contains(after, 0) {
		t.Errorf("the services have the processes %d", after)
	}
	// An earlier restart was killed. What does not start with the system may be stopped.
	for _, name := range []string{"dxtest-proxy", "dxtest-kubelet"} {
		testutil.NoError(t, stop(t.Context(), name))
	}
	testutil.NoError(t, service.Restart(t.Context()))
	if !wine && kubelet() == 0 {
		t.Error("the kubelet does not run")
	}
	for name, want := range map[string]bool{"dxtest-kubelet": true, "dxtest-proxy": false, "dxtest-none": false} {
		if got := startsWithSystem(name); got != want {
			t.Errorf("%s starts with the system: %t", name, got)
		}
	}
	testutil.CheckError(t, "check", service.Check(t.Context()), "is not a native service")
	testutil.CheckError(t, "check of none", Named("dxtest-none").Check(t.Context()), "--service")
}

// TestCheck: the command line of a service can have environment variables.
func TestCheck(t *testing.T) {
	name := fmt.Sprintf("directx-nri-test-check-%d", os.Getpid())
	path := `SYSTEM\CurrentControlSet\Services\` + name
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, path, registry.SET_VALUE)
	testutil.NoError(t, err)
	t.Cleanup(func() {
		testutil.NoError(t, key.Close(), registry.DeleteKey(registry.LOCAL_MACHINE, path))
	})
	for line, native := range map[string]bool{
		`%SystemRoot%\containerd.exe --run-service`: true, `"%SystemRoot%\containerd.exe" --run-service`: true, `%SystemRoot%\nssm.exe`: false,
	} {
		testutil.NoError(t, key.SetExpandStringValue("ImagePath", line))
		if err := Named(name).Check(t.Context()); (err == nil) != native {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A restart that is canceled leaves everything running.
func TestRestartCanceled(t *testing.T) {
	containerd := install(t, "dxtest-slow", 2*time.Second, mgr.Config{})
	kubelet := install(t, "dxtest-of-slow", 0, mgr.Config{Dependencies: []string{"dxtest-slow"}})
	before := containerd()
	kubelet()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := Named("dxtest-slow").Restart(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if now := containerd(); now == 0 || now == before {
		t.Errorf("containerd's process was %d and is %d", before, now)
	}
	if kubelet() == 0 {
		t.Error("the dependent service does not run")
	}
}

// A service does not accept the control while it starts.
func TestStopWhileStarting(t *testing.T) {
	install(t, "dxtest-starting", 2*time.Second, mgr.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	testutil.NoError(t, stop(ctx, "dxtest-starting"))
}
