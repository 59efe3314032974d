//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Wine is a Wine prefix with the doubles in it, and the server of all its
// processes.
type Wine struct {
	parts  parts
	dir    string // the run's folder
	wine64 string
	built  string // programs of the suite's own
	server *exec.Cmd
	ended  chan error // the server's end
}

// open makes the prefix and starts its server, which ends with this process.
func open(ctx context.Context, p parts) (_ *Wine, err error) {
	dir, err := os.MkdirTemp(os.Getenv("DIRECTX_NRI_E2E_TMP"), "dxw")
	if err != nil {
		return nil, fmt.Errorf("make a temporary folder: %w", err)
	}
	w := &Wine{parts: p, dir: dir, built: filepath.Join(dir, "built"), ended: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.wine64, err = findWine("wine64"); err != nil {
		return nil, err
	}
	for _, folder := range []string{w.prefix(), w.built} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			return nil, fmt.Errorf("make the Wine prefix: %w", err)
		}
	}
	if err := w.startServer(); err != nil {
		return nil, err
	}
	// Before any other program: hcsshim speaks its old schema to Windows 7.
	if _, err := w.output(w.Command(ctx, "reg", "add", `HKCU\Software\Wine`, "/v", "Version", "/d", "win10", "/f")); err != nil {
		return nil, fmt.Errorf("set up the Wine prefix: %w", err)
	}
	doubles, _ := filepath.Glob(filepath.Join(p.folder(windowsParts), "*.dll")) // The pattern is well formed.
	for _, double := range doubles {
		// Wine's own file of that name may be a link to the system's.
		to := w.Linux(`C:\windows\system32\` + filepath.Base(double))
		_ = os.Remove(to) // Most are not there.
		if err := copyFile(double, to); err != nil {
			return nil, fmt.Errorf("put a double into the Wine prefix: %w", err)
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", w.built, "./test/windows/launcher", "./test/windows/restart",
		"./test/windows/devices", "./test/windows/discover")
	build.Dir = p.root
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the suite's programs: %w\n%s", err, out)
	}
	return w, nil
}

// Another returns a prefix of the test's own, for what there is once in each.
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

// startServer starts the prefix's server as a child. It is killed with this
// process, whatever ends it, and all Wine processes end with it.
func (w *Wine) startServer() error {
	path, err := findWine("wineserver")
	if err != nil {
		return err
	}
	w.server = exec.Command(path, "--foreground", "--persistent")
	w.server.Env = w.environment()
	w.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // Ends with the server; close waits for it.
		// The child is killed when the thread that started it ends.
		runtime.LockOSThread()
		err := w.server.Start()
		started <- err
		if err == nil {
			w.ended <- w.server.Wait()
		}
	}()
	if err := <-started; err != nil {
		w.server = nil
		return fmt.Errorf("start the Wine server: %w", err)
	}
	return nil
}

// close ends every process of the prefix and removes it.
func (w *Wine) close() error {
	if w.server != nil {
		_ = w.server.Process.Signal(os.Interrupt) // Fails when it has ended.
		<-w.ended
	}
	if os.Getenv(keepVar) != "" {
		fmt.Fprintf(os.Stderr, "the run's folder is kept: %s\n", w.dir)
		return nil
	}
	deadline := time.Now().Add(patience)
	for {
		err := os.RemoveAll(w.dir)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove the run's folder: %w", err)
		}
		time.Sleep(poll) // Processes that are just ending still write.
	}
}

func (w *Wine) prefix() string { return filepath.Join(w.dir, "prefix") }

// overrides keep two libraries from being loaded, which somebody would be asked
// to install.
const overrides = "mscoree,mshtml=d"

// withoutDoubles keeps two doubles from all programs that are not to have them:
// that of cfgmgr32.dll has nothing but what Wine's own lacks, and newer runhcs
// would take that of computecore.dll for the whole.
const withoutDoubles = ";cfgmgr32=b;computecore=d"

func (w *Wine) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); !strings.HasPrefix(name, "WINE") && !strings.HasPrefix(name, "LC_") && !strings.HasPrefix(name, "DIRECTX_") {
			env = append(env, e)
		}
	}
	return append(env,
		"WINEPREFIX="+w.prefix(),
		"WINEDEBUG=-all",
		"WINEDLLOVERRIDES="+overrides+withoutDoubles,
		// Go stops a thread that runs for long by suspending it. When that meets the
		// end of the process, Wine 8 is dead-locked in NtTerminateProcess for good.
		"GODEBUG=asyncpreemptoff=1",
		"LC_ALL=C.UTF-8", // file names are UTF-8
		"HOME="+w.dir,
		"PATH=/usr/lib/wine:"+os.Getenv("PATH"),
	)
}

// Command returns a Windows program, ready to be started. Its environment may
// be added to.
func (w *Wine) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.wine64, append([]string{program}, args...)...)
	cmd.Env = w.environment()
	cmd.Dir = w.prefix()
	return cmd
}

// output runs a Windows program and returns what it printed to standard output.
// Its error has the rest.
func (w *Wine) output(cmd *exec.Cmd) (string, error) {
	stdout, stderr, err := w.outputs(cmd)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr))
	}
	return stdout, err
}

// outputs runs a Windows program and returns what it printed. Both go by files:
// Wine's services, which any program may start, would keep a pipe open for as
// long as they run.
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
	var texts [2]string
	for i, f := range files {
		data, err := os.ReadFile(f.Name())
		if err != nil {
			return "", "", err
		}
		texts[i] = string(data)
	}
	return texts[0], texts[1], runErr
}

// Finish runs a Windows program to its end, whatever that is, and returns its exit
// status and what it printed.
func (w *Wine) Finish(t testing.TB, cmd *exec.Cmd) (status int, stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := w.outputs(cmd)
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", cmd, err)
	}
	return cmd.ProcessState.ExitCode(), stdout, stderr
}

// Listing returns every file and folder of drive C:, except those that skip
// matches.
func (w *Wine) Listing(t testing.TB, skip func(path string) bool) []string {
	t.Helper()
	var listing []string
	drive := w.Linux("")
	// Not into what a link leads to: Wine links to the home folder.
	err := filepath.WalkDir(drive, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // It went away meanwhile.
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

// Linux returns where a path on drive C: is on this system.
func (w *Wine) Linux(path string) string {
	return filepath.Join(w.prefix(), "drive_c", strings.ReplaceAll(strings.TrimPrefix(path, `C:\`), `\`, "/"))
}

// findWine returns a program of Wine's, which Debian puts outside of PATH.
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

// copyFile copies a file, as a second name for it where that can be.
func copyFile(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
