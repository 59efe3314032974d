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
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/access"
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
	d.lockFile = filepath.Join(dir+".state", "lock")
	d.isOurs = func(path string) (bool, error) {
		data, err := os.ReadFile(path)
		return strings.HasPrefix(string(data), "ours"), err
	}
	d.selfTest = func(context.Context, string, string) error { return nil }
	// Tests that run at the same time would change one value of the registry.
	d.files.renameAtBoot = func(string, string) (func() error, error) { return func() error { return nil }, nil }
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

// has fails the test unless the directory has exactly these files, as "path: content".
func (n node) has(want ...string) {
	n.t.Helper()
	var got []string
	err := filepath.WalkDir(n.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
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

// TestStates has the table of the design: each state, and what is done in it.
func TestStates(t *testing.T) {
	t.Parallel()
	const place, moved = "shim: ", "directx-nri/shim: "
	diverted, restored := []string{place + "ours 2", moved + "runhcs 1"}, []string{place + "runhcs 1"}
	for state, want := range map[[2]string]struct {
		check           error
		install, remove []string // the files afterwards, nil if it is refused
	}{
		{"", ""}:                 {ErrNoShim, nil, []string{}},
		{"", "runhcs 1"}:         {ErrInterrupted, diverted, restored},
		{"", "ours 1"}:           {ErrBroken, nil, nil},
		{"runhcs 1", ""}:         {ErrNotDiverted, diverted, restored},
		{"runhcs 1", "runhcs 0"}: {ErrNotDiverted, diverted, restored},
		{"runhcs 1", "ours 1"}:   {ErrBroken, nil, nil},
		{"ours 1", ""}:           {ErrBroken, nil, nil},
		{"ours 1", "runhcs 1"}:   {nil, diverted, restored},
		{"ours 1", "ours 1"}:     {ErrBroken, nil, nil},
	} {
		t.Run(fmt.Sprint(state), func(t *testing.T) {
			t.Parallel()
			test := func(action func(n node) (bool, error), files []string) {
				n := newNode(t, state[0], state[1])
				n.checks(want.check)
				changed, err := action(n)
				if files == nil {
					if changed || !errors.Is(err, want.check) {
						t.Errorf("changed %t, %v", changed, err)
					}
					return
				}
				if replaced := n.read(n.place()) != state[0]; err != nil || changed != replaced {
					t.Errorf("changed %t, %v", changed, err)
				}
				n.has(files...)
			}
			test(func(n node) (bool, error) { return n.Install(t.Context(), newFile(t, "ours 2")) }, want.install)
			test(func(n node) (bool, error) { return n.Remove(t.Context()) }, want.remove)
		})
	}
}

func TestInstallAndRemove(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	n.install("ours 1", true)
	n.install("ours 1", false)
	n.install("ours 2", true)
	n.has("shim: ours 2", "directx-nri/shim: runhcs 1")
	n.put(n.place(), "runhcs 2") // containerd is updated.
	before, err := os.Stat(n.place())
	testutil.NoError(t, err)
	n.install("ours 2", true)
	n.remove(true)
	n.has("shim: runhcs 2")
	if after, err := os.Stat(n.place()); err != nil || !after.ModTime().Equal(before.ModTime()) || after.Mode() != before.Mode() {
		t.Errorf("the real shim is not as it was: %v, %v", after, err)
	}
	n.remove(false)
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
		if n.read(program) != "ours 1" || n.read(n.place()) != "runhcs 1" || access.CheckPrivate(dir) != nil {
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
	n.checks(ErrNotDiverted)
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

// TestSwapFails: when our shim cannot be placed, the real one goes back. If that fails, too, ours is placed at the next boot.
func TestSwapFails(t *testing.T) {
	t.Parallel()
	const noLinks, renamed = "no hard links", "a running program is only renamed"
	for name, test := range map[string]struct {
		variant string
		back    error
		placed  string // by another program, in the gap
		want    []string
	}{
		"back":                      {variant: renamed, want: []string{"shim: runhcs 1"}},
		"not even back":             {variant: renamed, back: errInUse},
		"not back, without links":   {variant: noLinks, back: errInUse},
		"another program was first": {variant: noLinks, placed: "runhcs 2", want: []string{"shim: runhcs 2", "directx-nri/shim: runhcs 1"}},
	} {
		n := newNode(t, "runhcs 1", "")
		variants[test.variant](&n.files)
		plain, boot := n.files, func() error { return nil }
		n.files.renameAtBoot = func(from, to string) (func() error, error) {
			boot = func() error { return plain.rename(from, to) }
			return func() error { boot = nil; return nil }, nil
		}
		n.files.rename = func(from, to string) error {
			isOurs := strings.HasPrefix(n.read(from), "ours")
			switch {
			case to == n.place() && test.placed != "":
				n.put(to, test.placed)
			case to == n.place() && isOurs:
				return errInUse
			case to == n.place() && test.back != nil:
				return test.back
			}
			return plain.rename(from, to)
		}
		changed, err := n.Install(t.Context(), newFile(t, "ours 1"))
		if err == nil || changed || (boot == nil) != (test.back == nil) {
			t.Errorf("%s: changed %t, %v, the rename at boot is canceled: %t", name, changed, err, boot == nil)
		}
		if test.back == nil {
			n.has(test.want...)
		} else {
			testutil.NoError(t, boot())
		}
		n.files = plain
		n.install("ours 1", test.back == nil)
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

func TestLockEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	n.selfTest = func(context.Context, string, string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := openNode(n.dir).Install(ctx, newFile(t, "ours 1"))
		return err
	}
	if _, err := n.Install(t.Context(), newFile(t, "ours 1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	n.has("shim: runhcs 1")
}

// TestKeeperFollowsContainerd: an update of RKE2 has a directory of its own.
func TestKeeperFollowsContainerd(t *testing.T) {
	t.Parallel()
	old, updated := newNode(t, "runhcs 1", ""), newNode(t, "runhcs 2", "")
	k, at, findErr := newKeeper(t, old), old.dir, error(nil)
	var left []string
	k.find = func() (string, []string, error) { return at, left, findErr }
	ensure := func(diverted, undone node, text string) {
		t.Helper()
		testutil.NoError(t, k.Ensure(t.Context()))
		diverted.checks(nil)
		undone.has(text)
	}
	ensure(old, updated, "shim: runhcs 2")
	findErr = ErrUnknownDirectory // containerd restarts.
	ensure(old, updated, "shim: runhcs 2")
	at, findErr = updated.dir, nil
	ensure(updated, old, "shim: runhcs 1")
	old.install("ours 1", true) // by a container that has ended
	left = []string{old.dir}
	ensure(updated, old, "shim: runhcs 1")
}

// newKeeper returns the Keeper of a node whose directory it has found.
func newKeeper(t *testing.T, n node) *Keeper {
	k := NewKeeper(n.dir, newFile(t, "ours 1"), testutil.Quiet())
	k.newIn = func(dir string) *Diversion {
		if dir == n.dir {
			return n.Diversion
		}
		return openNode(dir)
	}
	return k
}

func TestKeeper(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	k := newKeeper(t, n)
	ensure := func(want error) {
		t.Helper()
		if err := k.Ensure(t.Context()); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	for i := range maxRepairs + 1 {
		ensure(nil)
		if i == 0 { // The last repairs were long ago.
			k.repairs, k.lastRepair = maxRepairs, time.Now().Add(-2*repairPeriod)
		}
		ensure(nil)
		n.checks(nil)
		n.put(n.place(), fmt.Sprint("runhcs ", i))
	}
	for range 2 {
		ensure(ErrContested)
		n.checks(ErrNotDiverted)
	}
	testutil.NoError(t, k.Undo(t.Context()))
	n.has(fmt.Sprint("shim: runhcs ", maxRepairs))
	ensure(nil)
	n.checks(nil)
}

// TestKeeperTestsSeldom: a program that fails its test, as under application control, is not copied again and again.
func TestKeeperTestsSeldom(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	k := newKeeper(t, n)
	tests := 0
	canceled, cancel := context.WithCancel(t.Context())
	defer cancel()
	n.selfTest = func(context.Context, string, string) error { cancel(); return shimfile.ErrSelfTest }
	if err := k.Ensure(canceled); !errors.Is(err, shimfile.ErrSelfTest) || k.testErr != nil {
		t.Errorf("the end of the run counts as a failure of the test: %v", err)
	}
	n.selfTest = func(context.Context, string, string) error { tests++; return shimfile.ErrSelfTest }
	for range 2 {
		if err := k.Ensure(t.Context()); !errors.Is(err, shimfile.ErrSelfTest) || tests != 1 {
			t.Errorf("%v after %d tests", err, tests)
		}
	}
	passes := func(context.Context, string, string) error { return nil }
	n.selfTest, k.testedAt = passes, k.testedAt.Add(-retestInterval)
	testutil.NoError(t, k.Ensure(t.Context()))
	n.checks(nil)
}

// TestRepair: a virus scanner takes our shim away, and the real one runs containers.
func TestRepair(t *testing.T) {
	t.Parallel()
	for _, behave := range variants {
		n := newNode(t, "", "runhcs 1")
		behave(&n.files)
		testutil.NoError(t, os.WriteFile(filepath.Dir(n.lockFile), nil, 0o600)) // No file can be locked.
		k := newKeeper(t, n)
		for _, want := range []bool{false, true, false} {
			if repaired, err := k.Repair(); err != nil || repaired != want {
				t.Errorf("repaired: %t, %v, want %t", repaired, err, want)
			}
		}
		n.has("shim: runhcs 1", "directx-nri/shim: runhcs 1")
		testutil.NoError(t, os.Remove(filepath.Dir(n.lockFile)), os.Remove(n.place()), k.Ensure(t.Context()))
		n.checks(nil)
	}
}

// TestFullDisk: the diversion is undone without a copy.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t, "ours 1", "runhcs 1")
	n.files.copy = func(_, to string) error { return errors.Join(os.WriteFile(to, nil, 0o600), syscall.ENOSPC) }
	n.remove(true)
	n.has("shim: runhcs 1")
}

// TestRenameAtBootStays: the real shim is not lost when what was prepared for a crash cannot be taken back.
func TestRenameAtBootStays(t *testing.T) {
	t.Parallel()
	n := newNode(t, "runhcs 1", "")
	variants["a running program is only renamed"](&n.files)
	n.files.renameAtBoot = func(string, string) (func() error, error) { return func() error { return fs.ErrPermission }, nil }
	n.install("ours 1", true)
	n.has("shim: ours 1", "directx-nri/shim: runhcs 1")
}
