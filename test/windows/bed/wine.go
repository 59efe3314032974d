//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/test/windows/hardware"
)

// Wine is a Wine prefix with the doubles, and the server of its processes.
type Wine struct {
	parts  parts
	dir    string
	wine64 string
	built  string // directory of the suite's own programs
	// plugged are the devices of the last Plug.
	plugged []hardware.Device

	server *exec.Cmd
	ended  chan error
}

// open creates the prefix and starts its server, which ends with this process.
func open(ctx context.Context, p parts) (_ *Wine, err error) {
	dir, err := os.MkdirTemp(os.Getenv("DIRECTX_NRI_E2E_TMP"), "dxw")
	if err != nil {
		return nil, err
	}
	w := &Wine{parts: p, dir: dir, built: filepath.Join(dir, "built"), ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("set up the Wine prefix: %w", err), w.close())
		}
	}()
	if w.wine64, err = findWine("wine64"); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Mkdir(w.prefix(), 0o700), os.Mkdir(w.built, 0o700)); err != nil {
		return nil, err
	}
	if err := w.startServer(); err != nil {
		return nil, err
	}
	// hcsshim uses its old schema on Windows 7, which is Wine's default.
	if _, err := w.output(w.Command(ctx, "reg", "add", `HKCU\Software\Wine`, "/v", "Version", "/d", "win10", "/f")); err != nil {
		return nil, err
	}
	doubles, _ := filepath.Glob(p.stock(windowsParts, "*.dll")) // The pattern is well formed.
	for _, double := range doubles {
		to := w.Linux(`C:\windows\system32\` + filepath.Base(double))
		_ = os.Remove(to) // It can be a link to the system's file.
		if err := copyFile(double, to); err != nil {
			return nil, err
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", w.built,
		"./test/windows/launcher", "./test/windows/restart", "./test/windows/stacks", "./test/windows/discover")
	build.Dir = p.Root
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the suite's programs: %w\n%s", err, out)
	}
	// The first program with a window makes Wine remove the GPUs that it does not know.
	if _, err := w.output(w.Command(ctx, filepath.Join(w.built, "discover.exe"), "display")); err != nil {
		return nil, err
	}
	return w, nil
}

// Another returns a prefix for one test.
func (w *Wine) Another(t testing.TB) *Wine {
	t.Helper()
	other, err := open(context.Background(), w.parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.close(); err != nil {
			t.Error(err)
		}
	})
	return other
}

// startServer starts the prefix's server. When this process ends, the server is
// interrupted and ends all processes of the prefix. They would outlive a killed server.
func (w *Wine) startServer() error {
	path, err := findWine("wineserver")
	if err != nil {
		return err
	}
	server := exec.Command(path, "--foreground", "--persistent")
	server.Env = w.environment()
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	started := make(chan error)
	go func() { // Ends with the server; close waits for it.
		// The child is killed when the thread that started it ends.
		runtime.LockOSThread()
		err := server.Start()
		started <- err
		if err == nil {
			w.ended <- server.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	w.server = server
	return nil
}

// close ends each process of the prefix and removes it.
func (w *Wine) close() error {
	if w.server != nil {
		_ = w.server.Process.Signal(os.Interrupt) // An error means that it has ended.
		<-w.ended
	}
	// A process that was just starting does not notice the end of its server.
	processes, _ := filepath.Glob("/proc/[0-9]*") // The pattern is well formed.
	for _, process := range processes {
		if pid, err := strconv.Atoi(filepath.Base(process)); err == nil && w.has(process) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // An error means that it has ended.
		}
	}
	if os.Getenv("DIRECTX_NRI_E2E_KEEP") != "" {
		fmt.Fprintf(os.Stderr, "the run's directory is kept: %s\n", w.dir)
		return nil
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		// Processes that are ending may still write.
		if err := os.RemoveAll(w.dir); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (w *Wine) prefix() string { return filepath.Join(w.dir, "prefix") }

const (
	// overrides disable two libraries that Wine would offer to install.
	overrides = "WINEDLLOVERRIDES=mscoree,mshtml=d"
	// usualDoubles disables two doubles: that of cfgmgr32.dll has only what Wine's own
	// lacks, and the newest runhcs needs more than that of computecore.dll has.
	usualDoubles = overrides + ";cfgmgr32=b;computecore=d"
	// withoutDXCore is a Windows without dxcore.dll, such as Windows Server 2019.
	withoutDXCore = usualDoubles + ";dxcore=d"
	// withNotifications enables the double of cfgmgr32.dll, which reports devices that
	// come and go. Wine 8's own does not.
	withNotifications = overrides + ";cfgmgr32=n"
	// hcsAnswers enables the double of computecore.dll, which answers queries.
	hcsAnswers = overrides + ";cfgmgr32=b;computecore=n"
)

func (w *Wine) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); !strings.HasPrefix(name, "WINE") && !strings.HasPrefix(name, "LC_") && !strings.HasPrefix(name, "DIRECTX_") {
			env = append(env, e)
		}
	}
	return append(env, usualDoubles,
		"WINEPREFIX="+w.prefix(),
		"WINEDEBUG=-all",
		// Without it some programs hang when they end.
		"LD_PRELOAD="+w.parts.stock(windowsParts, robustSo),
		// Go preempts a thread by suspending it. If that meets the end of the process,
		// Wine 8 deadlocks in NtTerminateProcess.
		"GODEBUG=asyncpreemptoff=1",
		"LC_ALL=C.UTF-8", // for file names
		"HOME="+w.dir,
		"PATH=/usr/lib/wine:"+os.Getenv("PATH"),
	)
}

// Command returns a command that runs a Windows program. If ctx ends before the program,
// the program's standard error has the evidence.
func (w *Wine) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.wine64, append([]string{program}, args...)...)
	cmd.Env = w.environment()
	cmd.Dir = w.prefix()
	cmd.Cancel = func() error {
		if cmd.Stderr != nil {
			fmt.Fprintf(cmd.Stderr, "%s: %s\n", tookTooLong, w.evidence())
		}
		return cmd.Process.Kill()
	}
	return cmd
}

// output runs a Windows program and returns its standard output. The error has its
// standard error.
func (w *Wine) output(cmd *exec.Cmd) (string, error) {
	stdout, stderr, err := w.outputs(cmd)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr))
	}
	return stdout, err
}

// outputs runs a Windows program and returns its output. It uses files, because Wine's
// services, which any program can start, keep a pipe open.
func (w *Wine) outputs(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp(w.dir, "output-")
		if err != nil {
			return "", "", err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	runErr := cmd.Run()
	out, err1 := os.ReadFile(files[0].Name())
	errs, err2 := os.ReadFile(files[1].Name())
	if err := errors.Join(err1, err2); err != nil {
		return "", "", err
	}
	return string(out), string(errs), runErr
}

// Finish runs a Windows program and returns its exit status and output.
func (w *Wine) Finish(t testing.TB, cmd *exec.Cmd) (status int, stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := w.outputs(cmd)
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", cmd, err)
	}
	return cmd.ProcessState.ExitCode(), stdout, stderr
}

// Listing returns the files and directories of drive C:, except those that skip matches
// and what is below them.
func (w *Wine) Listing(t testing.TB, skip func(path string) bool) []string {
	t.Helper()
	var listing []string
	drive := w.Linux("")
	// WalkDir follows no links: Wine has some to the home directory.
	err := filepath.WalkDir(drive, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // It was removed.
		}
		if err != nil || path == drive {
			return err
		}
		name := `C:` + strings.ReplaceAll(strings.TrimPrefix(path, drive), "/", `\`)
		switch {
		case !skip(name):
			listing = append(listing, name)
		case entry.IsDir():
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatalf("list drive C: of the prefix: %v", err)
	}
	return listing
}

// Linux returns the path on this system of a path on drive C:.
func (w *Wine) Linux(path string) string {
	return filepath.Join(w.prefix(), "drive_c", strings.ReplaceAll(strings.TrimPrefix(path, `C:\`), `\`, "/"))
}

// replace replaces a file of the prefix atomically, because others may read it.
func (w *Wine) replace(t testing.TB, path string, content []byte) {
	t.Helper()
	path = w.Linux(path)
	if err := errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// findWine returns a program of Wine, which on Debian is not on PATH.
func findWine(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, suffix := range []string{"", "64"} {
		path := filepath.Join("/usr/lib/wine", name+suffix)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is missing: run test/parts/build.sh windows as root, or install the package wine64", name)
}

// copyFile makes to a hard link to from, or a copy if they are on different file systems.
func copyFile(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755) //nolint:gosec // a program
}
