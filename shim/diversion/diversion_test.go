package diversion

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// node is a directory of containerd with shims whose content says what they are: "runhcs 1", "ours 2".
type node struct {
	*Diversion
	t testing.TB
}

// files counts the files that tests write.
var files atomic.Int64

// newNode returns a node with the given shims, "" for none.
func newNode(t testing.TB, place, moved string) node {
	t.Helper()
	n := node{openNode(t.TempDir()), t}
	n.put(n.place(), place)
	n.put(n.real(), moved)
	return n
}

// openNode returns the diversion in dir as another process sees it.
func openNode(dir string) *Diversion {
	d := New(dir)
	d.isOurs = func(path string) (bool, error) {
		data, err := os.ReadFile(path)
		return strings.HasPrefix(string(data), "ours"), err
	}
	d.selfTest = func(context.Context, string, string) error { return nil }
	return d
}

func (n node) put(path, text string) {
	n.t.Helper()
	if text != "" {
		testutil.WriteFile(n.t, path, text, 0o755)
		modified := time.Unix(1e9+files.Add(1), 0) // File systems have coarse times.
		testutil.NoError(n.t, os.Chtimes(path, modified, modified))
	}
}

// newFile returns a file with a new shim.
func newFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "new.exe")
	testutil.WriteFile(t, path, text, 0o600)
	return path
}

// has fails the test unless the directory has exactly these files, as "path: content", and perhaps a lock
// beside the real shim.
func (n node) has(want ...string) {
	n.t.Helper()
	var got []string
	err := filepath.WalkDir(n.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == lockName && n.read(n.real()) != "" {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(n.dir, path)
		name = strings.ReplaceAll(filepath.ToSlash(name), paths.Runhcs, "shim")
		got = append(got, name+": "+string(data))
		return err
	})
	slices.Sort(want)
	slices.Sort(got)
	if _, statErr := os.Stat(n.workDir()); statErr == nil && !strings.Contains(strings.Join(want, ""), paths.RealShimDir+"/") {
		n.t.Errorf("%s is left", n.workDir())
	}
	if err != nil || !slices.Equal(got, want) {
		n.t.Errorf("files %q, %v; want %q", got, err, want)
	}
}

func (n node) read(path string) string {
	data, _ := os.ReadFile(path)
	return string(data)
}

// checks fails the test unless Check returns an error that matches want.
func (n node) checks(want error) {
	n.t.Helper()
	if err := n.Check(); !errors.Is(err, want) {
		n.t.Errorf("check: %v, want %v", err, want)
	}
}

func (n node) install(text string, wantChanged bool) {
	n.t.Helper()
	if changed, err := n.Install(n.t.Context(), newFile(n.t, text)); err != nil || changed != wantChanged {
		n.t.Errorf("install: changed %t, %v", changed, err)
	}
}

func (n node) remove(wantChanged bool) {
	n.t.Helper()
	if changed, err := n.Remove(n.t.Context()); err != nil || changed != wantChanged {
		n.t.Errorf("remove: changed %t, %v", changed, err)
	}
}

var errInUse = errors.New("a program runs from it")

// variants are the ways in which file systems behave.
var variants = map[string]func(*fileOps){
	"a running program is replaced": func(*fileOps) {},
	"a running program is only renamed": func(f *fileOps) {
		f.replace = func(string, string) error { return errInUse }
		f.isInUse = func(err error) bool { return errors.Is(err, errInUse) }
	},
	"no hard links": func(f *fileOps) { f.link = func(string, string) error { return errors.ErrUnsupported } },
}

func TestInstallAndRemove(t *testing.T) {
	t.Parallel()
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "runhcs 1", "")
			variant(&n.files)
			old := time.Unix(1e8, 0)
			before, err := os.Stat(n.place())
			testutil.NoError(t, err)
			n.checks(ErrNotDiverted)
			n.remove(false)
			n.install("ours 1", true)
			n.checks(nil)
			n.has("shim: ours 1", "directx-nri/shim: runhcs 1")
			n.install("ours 1", false)
			n.install("ours 2", true)
			n.has("shim: ours 2", "directx-nri/shim: runhcs 1")
			n.put(n.place(), "runhcs 2") // containerd is updated.
			n.checks(ErrOverwritten)
			n.install("ours 2", true)
			n.has("shim: ours 2", "directx-nri/shim: runhcs 2")
			testutil.NoError(t, os.Chtimes(n.real(), old, old))
			n.remove(true)
			n.has("shim: runhcs 2")
			if info, err := os.Stat(n.place()); err != nil || !info.ModTime().Equal(old) || info.Mode() != before.Mode() {
				t.Errorf("the real shim is not as it was: %v, %v", info, err)
			}
			n.checks(ErrNotDiverted)
		})
	}
}

func TestUnusableDirectory(t *testing.T) {
	t.Parallel()
	missing := node{openNode(filepath.Join(t.TempDir(), "none")), t}
	missing.checks(ErrNoShim)
	if _, err := missing.Install(t.Context(), newFile(t, "ours")); !errors.Is(err, ErrNoShim) {
		t.Error(err)
	}
	missing.remove(false)
	if _, err := os.Stat(missing.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the missing directory: %v", err)
	}

	readOnly := newNode(t, "runhcs 1", "")
	refuse := func(string, string) error { return fs.ErrPermission }
	readOnly.files.link, readOnly.files.rename, readOnly.files.replace = refuse, refuse, refuse
	if _, err := readOnly.Install(t.Context(), newFile(t, "ours")); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	readOnly.has("shim: runhcs 1")

	occupied := newNode(t, "runhcs 1", "")
	occupied.put(occupied.workDir(), "a file")
	if err := occupied.Check(); err == nil {
		t.Error("a file in place of the directory of the real shim is no error")
	}
	directory := newNode(t, "", "")
	testutil.NoError(t, os.Mkdir(directory.place(), 0o700))
	testutil.CheckError(t, "a directory", directory.Check(), "is not a regular file")
}

func TestSelfTestComesFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	n.selfTest = func(_ context.Context, program, dir string) error {
		if n.read(program) != "ours 1" || n.read(n.place()) != "runhcs 1" || filepath.Dir(program) != dir {
			t.Errorf("tested %s in %s", program, dir)
		}
		return shimfile.ErrSelfTest
	}
	if changed, err := n.Install(t.Context(), newFile(t, "ours 1")); changed || !errors.Is(err, shimfile.ErrSelfTest) {
		t.Errorf("changed %t, %v", changed, err)
	}
	n.has("shim: runhcs 1")
	if _, err := n.Install(t.Context(), n.dir+".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestCheckReadsChangesOnly: a check in a loop reads a file again only when it has changed.
func TestCheckReadsChangesOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t, "ours 1", "runhcs 1")
	reads := 0
	recognize := n.isOurs
	n.isOurs = func(path string) (bool, error) { reads++; return recognize(path) }
	for range 3 {
		n.checks(nil)
	}
	n.put(n.place(), "runhcs 2")
	n.checks(ErrOverwritten)
	if reads != 3 {
		t.Errorf("%d reads, want 3", reads)
	}
}

// TestCrash stops each action before each operation on a file, as a crash would, and repairs it.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, initial := range []struct{ place, real, newest string }{
		{"runhcs 1", "", "runhcs 1"},
		{"ours 1", "runhcs 1", "runhcs 1"},
		{"runhcs 2", "runhcs 1", "runhcs 2"},
		{"", "runhcs 1", "runhcs 1"},
	} {
		for variant, behave := range variants {
			for _, action := range []string{"install", "remove"} {
				for _, repair := range []string{"install", "remove", "boot"} {
					t.Run(fmt.Sprint(initial, variant, action, repair), func(t *testing.T) {
						t.Parallel()
						for crash := 0; ; crash++ {
							n := newNode(t, initial.place, initial.real)
							behave(&n.files)
							if !crashTest(n, action, repair, crash, initial.newest) {
								return
							}
						}
					})
				}
			}
		}
	}
}

// crashTest stops the action before an operation, repairs the diversion, and reports whether the action has
// not ended before.
func crashTest(n node, action, repair string, crash int, newest string) (crashed bool) {
	n.t.Helper()
	d, plain, before := n.Diversion, n.files, n.read(n.place())
	atBoot := interrupt(&d.files, crash, &crashed)
	ctx := n.t.Context()
	var err error
	if action == "install" {
		_, err = d.Install(ctx, newFile(n.t, "ours 2"))
	} else {
		_, err = d.Remove(ctx)
	}
	if err != nil && !crashed {
		n.t.Errorf("crash %d: %v", crash, err)
	}
	d.files = plain
	if n.read(n.place()) != newest && n.read(n.real()) != newest {
		n.t.Errorf("crash %d: the real shim is lost", crash)
	}
	switch repair {
	case "boot":
		if atBoot(); before != "" && !slices.Contains([]string{newest, "ours 1", "ours 2"}, n.read(n.place())) {
			n.t.Errorf("crash %d: after a boot, containerd runs %q", crash, n.read(n.place()))
		}
		return crashed
	case "install":
		_, err := n.Install(ctx, newFile(n.t, "ours 3"))
		testutil.NoError(n.t, err)
		n.checks(nil)
		n.has("shim: ours 3", "directx-nri/shim: "+newest)
	}
	_, err = n.Remove(ctx)
	testutil.NoError(n.t, err)
	n.has("shim: " + newest)
	return crashed
}

// interrupt makes all operations fail after the first ones. boot does what Windows would do at the next boot.
func interrupt(f *fileOps, operations int, crashed *bool) (boot func()) {
	atBoot := func() {}
	plain, errCrash := *f, errors.New("crash")
	next := func(do func() error) error {
		if operations--; operations < 0 {
			*crashed = true
			return errCrash
		}
		return do()
	}
	two := func(do func(from, to string) error) func(from, to string) error {
		return func(from, to string) error { return next(func() error { return do(from, to) }) }
	}
	f.copy, f.link, f.rename, f.replace = two(plain.copy), two(plain.link), two(plain.rename), two(plain.replace)
	f.remove = func(path string) error { return next(func() error { return plain.remove(path) }) }
	f.renameAtBoot = func(from, to string) (func() error, error) {
		cancel := func() error { return next(func() error { atBoot = func() {}; return nil }) }
		return cancel, next(func() error { atBoot = func() { _ = plain.rename(from, to) }; return nil })
	}
	return func() { atBoot() }
}

// TestSwapFails: when our shim cannot be placed, the real one goes back.
func TestSwapFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		back        error
		placed      string // by another program, in the gap
		want        []string
		canceled    bool
		afterwards  error
		afterRepair []string
	}{
		"back":                      {want: []string{"shim: runhcs 1"}, canceled: true, afterwards: ErrNotDiverted},
		"not even back":             {back: errInUse, want: []string{"directx-nri/shim: runhcs 1"}, afterwards: ErrInterrupted},
		"another program was first": {placed: "runhcs 2", want: []string{"shim: runhcs 2", "directx-nri/shim: runhcs 1"}, canceled: true, afterwards: ErrOverwritten},
	} {
		n := newNode(t, "runhcs 1", "")
		variants["no hard links"](&n.files)
		plain, canceled := n.files, false
		n.files.renameAtBoot = func(string, string) (func() error, error) {
			return func() error { canceled = true; return nil }, nil
		}
		n.files.rename = func(from, to string) error {
			switch {
			case to != n.place():
				return plain.rename(from, to)
			case test.placed != "":
				n.put(n.place(), test.placed)
				return plain.rename(from, to)
			case from != n.real():
				return errInUse
			}
			if test.back != nil {
				return test.back
			}
			return plain.rename(from, to)
		}
		if changed, err := n.Install(t.Context(), newFile(t, "ours 1")); err == nil || changed {
			t.Errorf("%s: changed %t, %v", name, changed, err)
		}
		n.has(test.want...)
		n.checks(test.afterwards)
		if canceled != test.canceled {
			t.Errorf("%s: the rename at boot is canceled: %t", name, canceled)
		}
		n.files = plain
		n.install("ours 1", true)
		n.checks(nil)
	}
}

// TestRemoveWhileProgramsRun: what runs is deleted later, and the real shim not before our shim, which runs it.
func TestRemoveWhileProgramsRun(t *testing.T) {
	t.Parallel()
	n := newNode(t, "ours 1", "runhcs 1")
	plain, starting, containers := n.files.remove, 3, true
	n.files.isInUse = func(err error) bool { return errors.Is(err, errInUse) }
	n.files.remove = func(path string) error {
		switch {
		case strings.HasPrefix(filepath.Base(path), oursPrefix) && starting > 0:
			starting--
			return errInUse
		case path == n.real() && starting > 0:
			t.Error("the real shim is deleted while a start needs it")
		case path == n.real() && containers:
			return errInUse
		}
		return plain(path)
	}
	n.put(filepath.Join(n.dir, "device-util.exe"), "tool")
	n.put(filepath.Join(n.workDir(), "device-util.exe"), "tool")
	n.remove(true)
	n.has("shim: runhcs 1", "directx-nri/shim: runhcs 1", "device-util.exe: tool", "directx-nri/device-util.exe: tool")
	n.checks(ErrNotDiverted)
	n.install("ours 1", true)
	n.checks(nil)
	containers = false
	n.remove(true)
	n.has("shim: runhcs 1", "device-util.exe: tool")
	n.remove(false)
}

// TestCompanions: the real shim finds its files beside itself.
func TestCompanions(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	n.put(filepath.Join(n.dir, "LinuxBootFiles", "kernel"), "kernel")
	n.put(filepath.Join(n.dir, "device-util.exe"), "tool 1")
	n.install("ours 1", true)
	others := []string{"LinuxBootFiles/kernel: kernel", "directx-nri/LinuxBootFiles/kernel: kernel", "shim: ours 1"}
	n.has(append(others, "device-util.exe: tool 1", "directx-nri/device-util.exe: tool 1", "directx-nri/shim: runhcs 1")...)

	// containerd is updated.
	testutil.NoError(t, os.Remove(filepath.Join(n.dir, "device-util.exe")))
	n.put(filepath.Join(n.dir, "device-util.exe"), "tool 2")
	n.put(n.place(), "runhcs 2")
	n.install("ours 1", true)
	n.has(append(others, "device-util.exe: tool 2", "directx-nri/device-util.exe: tool 2", "directx-nri/shim: runhcs 2")...)
	testutil.NoError(t, os.Remove(filepath.Join(n.dir, "device-util.exe")))
	n.put(n.place(), "runhcs 3")
	n.install("ours 1", true)
	n.has(append(others, "directx-nri/shim: runhcs 3")...)
	n.remove(true)
	n.has("shim: runhcs 3", "LinuxBootFiles/kernel: kernel")

	n.files.link = func(string, string) error { return errors.ErrUnsupported }
	if _, err := n.Install(t.Context(), newFile(t, "ours 1")); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	n.has("shim: runhcs 3", "LinuxBootFiles/kernel: kernel")
	n.checks(ErrNotDiverted)
}

// TestSeveralAtOnce: processes wait for one another, and the last one that removes leaves nothing.
func TestSeveralAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	var group sync.WaitGroup
	for i := range 8 {
		file := newFile(t, fmt.Sprint("ours ", i))
		d := openNode(n.dir)
		group.Go(func() {
			for range 10 {
				_, err := d.Install(t.Context(), file)
				if i%2 == 0 {
					_, removeErr := d.Remove(t.Context())
					err = errors.Join(err, removeErr)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	_, err := n.Remove(t.Context())
	testutil.NoError(t, err)
	n.has("shim: runhcs 1")
}

// TestCheckWhileAnotherRemoves: the two files are never reported from different times.
func TestCheckWhileAnotherRemoves(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	n.install("ours 1", true)
	d := openNode(n.dir)
	isOurs, removed := d.isOurs, false
	d.isOurs = func(path string) (bool, error) {
		result, err := isOurs(path)
		if !removed {
			removed = true
			n.remove(true)
		}
		return result, err
	}
	if err := d.Check(); !errors.Is(err, ErrNotDiverted) {
		t.Errorf("check: %v", err)
	}
}

func TestLockEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	unlock, err := n.lock(t.Context())
	testutil.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := openNode(n.dir).Install(ctx, newFile(t, "ours 1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	unlock()
	n.has("shim: runhcs 1")
}

func TestKeeper(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	k := NewKeeper("", newFile(t, "ours 1"))
	k.find = func() (string, error) { return "", ErrSeveralDirectories }
	ensure := func(want error) {
		t.Helper()
		if err := k.Ensure(t.Context()); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	ensure(ErrSeveralDirectories)
	k.diversion = n.Diversion
	for i := range maxRepairs + 1 {
		if i == 1 { // The first repair was long ago.
			k.repairs = []time.Time{time.Now().Add(-2 * repairPeriod)}
		}
		ensure(nil)
		ensure(nil)
		n.checks(nil)
		n.put(n.place(), fmt.Sprint("runhcs ", i))
	}
	for range 2 {
		ensure(ErrContested)
		n.checks(ErrOverwritten)
	}
	testutil.NoError(t, k.Undo(t.Context()))
	n.has(fmt.Sprint("shim: runhcs ", maxRepairs))
	ensure(nil)
	n.checks(nil)
}
