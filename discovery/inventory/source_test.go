package inventory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"directx-nri/discovery"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// fileWith returns an inventory of devices with these instance IDs.
func fileWith(ids ...string) string {
	if len(ids) == 0 {
		return head[:len(head)-1] + " []\n"
	}
	return head + "- instanceID: " + strings.Join(ids, "\n- instanceID: ") + "\n"
}

func idsOf(devices []discovery.Device) string {
	var ids []string
	for _, d := range devices {
		ids = append(ids, d.InstanceID)
	}
	return strings.Join(ids, " ")
}

// folder is a temporary folder in which every file that is put has a time of
// its own, long past: reading it need not wait for it to settle.
type folder struct {
	t    testing.TB
	path string
	puts int
}

func newFolder(t testing.TB) *folder { return &folder{t: t, path: t.TempDir()} }

func (f *folder) join(name string) string { return filepath.Join(f.path, name) }

func (f *folder) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// put replaces a file by renaming another over it.
func (f *folder) put(name, content string) {
	f.t.Helper()
	f.check(os.WriteFile(f.join(".new"), []byte(content), 0o600))
	f.age(".new")
	f.check(os.Rename(f.join(".new"), f.join(name)))
}

// rewrite writes a file in place.
func (f *folder) rewrite(name, content string) {
	f.t.Helper()
	f.check(os.WriteFile(f.join(name), []byte(content), 0o600))
	f.age(name)
}

func (f *folder) age(name string) {
	f.t.Helper()
	f.puts++
	then := time.Now().Add(-time.Hour).Truncate(time.Second).Add(time.Duration(f.puts) * time.Second)
	f.check(os.Chtimes(f.join(name), then, then))
}

func open(path string) (*Source, *logtest.Hook) {
	log, hook := logtest.NewNullLogger()
	return Open(path, log), hook
}

// wantDevices asks the source and compares the instance IDs.
func wantDevices(t *testing.T, s *Source, want string) {
	t.Helper()
	devices, err := s.Devices(t.Context())
	if err != nil {
		t.Errorf("Devices: %v, want %q", err, want)
	} else if got := idsOf(devices); got != want {
		t.Errorf("Devices: %q, want %q", got, want)
	}
}

func countLevel(hook *logtest.Hook, level logrus.Level) (n int) {
	for _, e := range hook.AllEntries() {
		if e.Level == level {
			n++
		}
	}
	return n
}

func TestDevicesFollowTheFile(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("a", "b"))
	s, _ := open(f.join("inv.yaml"))
	if err := s.Err(); err != nil {
		t.Errorf("Err before the first look: %v", err)
	}
	wantDevices(t, s, "a b")
	steps := []struct {
		name   string
		change func()
		want   string
	}{
		{"renamed over", func() { f.put("inv.yaml", fileWith("a")) }, "a"},
		{"written in place", func() { f.rewrite("inv.yaml", fileWith("b")) }, "b"},
		{"deleted and written again", func() {
			f.check(os.Remove(f.join("inv.yaml")))
			f.rewrite("inv.yaml", fileWith("c"))
		}, "c"},
		{"emptied", func() { f.rewrite("inv.yaml", fileWith()) }, ""},
		{"another file of the same size and time", func() {
			f.put("inv.yaml", fileWith("x"))
			wantDevices(t, s, "x")
			info, err := os.Stat(f.join("inv.yaml"))
			f.check(err)
			f.rewrite("other", fileWith("y"))
			f.check(os.Chtimes(f.join("other"), info.ModTime(), info.ModTime()))
			f.check(os.Rename(f.join("other"), f.join("inv.yaml")))
		}, "y"},
	}
	for _, step := range steps {
		step.change()
		devices, err := s.Devices(t.Context())
		if err != nil || idsOf(devices) != step.want || s.Err() != nil {
			t.Errorf("%s: %q, %v; want %q", step.name, idsOf(devices), err, step.want)
		}
	}
}

func TestDevicesAreCopies(t *testing.T) {
	t.Parallel()
	s, _ := open(filepath.Join("..", "..", "deployments", "inventory", "windows-g4dn.yaml"))
	first, err := s.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want []discovery.Device
	for _, d := range first {
		want = append(want, d.Clone())
	}
	first[0].System32[0].Source = "changed"
	*first[0].NUMANode = 7
	first[1] = discovery.Device{}
	second, err := s.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Errorf("the caller's changes came back (-want +got):\n%s", diff)
	}
}

func TestUnchangedFileIsNotReadAgain(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	s, _ := open(f.join("inv.yaml"))
	var opens int
	s.reader.open = func(path string) (fs.File, error) {
		opens++
		return os.Open(path)
	}
	for i, content := range []string{fileWith("a"), "bad", fileWith("b")} {
		f.put("inv.yaml", content)
		for range 3 {
			_, err := s.Devices(t.Context())
			f.check(err)
		}
		if opens != i+1 {
			t.Errorf("after version %d: opened %d times, want %d", i, opens, i+1)
		}
	}
}

func TestFileTurnsBadAndGoodAgain(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		bad      func(*folder)
		wantText string
		wantIs   error
	}{
		{"errors in it", func(f *folder) { f.put("inv.yaml", head+"- instanceID: a\n  display: yes\n") }, `inv.yaml:5: devices[0].display: must be true or false, not the string "yes"`, nil},
		{"empty", func(f *folder) { f.rewrite("inv.yaml", "") }, "inv.yaml:1: the file is empty", nil},
		{"gone", func(f *folder) { f.check(os.Remove(f.join("inv.yaml"))) }, "create the file, or start the program with the right path", fs.ErrNotExist},
		{"a folder", func(f *folder) {
			f.check(os.Remove(f.join("inv.yaml")))
			f.check(os.Mkdir(f.join("inv.yaml"), 0o700))
		}, "it is not a regular file; name the YAML file itself", nil},
		{"too large", func(f *folder) {
			f.check(os.Truncate(f.join("inv.yaml"), maxFileSize+1))
			f.age("inv.yaml")
		}, "it has 4194305 bytes; at most 4194304 are allowed", nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			f.put("inv.yaml", fileWith("a", "b"))
			s, logged := open(f.join("inv.yaml"))
			wantDevices(t, s, "a b")

			tc.bad(f)
			for range 3 {
				wantDevices(t, s, "a b")
			}
			err := s.Err()
			if err == nil || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("Err() = %v, want %q in it", err, tc.wantText)
			}
			if tc.wantIs != nil && !errors.Is(err, tc.wantIs) {
				t.Errorf("Err() = %v is not %v", err, tc.wantIs)
			}
			if n := countLevel(logged, logrus.ErrorLevel); n != 1 {
				t.Errorf("logged %d errors, want 1", n)
			}
			if last := logged.LastEntry(); fmt.Sprint(last.Data[logrus.ErrorKey]) != err.Error() || last.Data["devices"] != 2 || !strings.Contains(last.Message, "last good list") {
				t.Errorf("logged %q %v", last.Message, last.Data)
			}

			f.check(os.RemoveAll(f.join("inv.yaml")))
			f.put("inv.yaml", fileWith("c"))
			wantDevices(t, s, "c")
			if err := s.Err(); err != nil {
				t.Errorf("Err() = %v after the repair", err)
			}
			if last := logged.LastEntry(); last.Level != logrus.InfoLevel || !strings.Contains(last.Message, "good again") {
				t.Errorf("logged %q", last.Message)
			}
		})
	}
}

func TestEachBadVersionIsLogged(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("a"))
	s, logged := open(f.join("inv.yaml"))
	wantDevices(t, s, "a")
	for i := range 3 {
		f.put("inv.yaml", "bad")
		wantDevices(t, s, "a")
		if n := countLevel(logged, logrus.ErrorLevel); n != i+1 {
			t.Errorf("logged %d errors after %d bad versions", n, i+1)
		}
	}
}

func TestNoGoodListYet(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	s, logged := open(f.join("inv.yaml"))
	for range 2 {
		devices, err := s.Devices(t.Context())
		if !errors.Is(err, fs.ErrNotExist) || devices != nil || !errors.Is(s.Err(), fs.ErrNotExist) {
			t.Fatalf("Devices = %v, %v; Err() = %v", devices, err, s.Err())
		}
		if want := "read inventory " + f.join("inv.yaml") + ": "; !strings.HasPrefix(err.Error(), want) || strings.Count(err.Error(), "inv.yaml") != 1 {
			t.Errorf("error %q, want it to begin %q and to name the file once", err, want)
		}
	}
	if n := countLevel(logged, logrus.ErrorLevel); n != 1 {
		t.Errorf("logged %d errors, want 1", n)
	}
	f.put("inv.yaml", "bad")
	var problems Problems
	if _, err := s.Devices(t.Context()); !errors.As(err, &problems) {
		t.Errorf("error %v has no Problems", err)
	}
	f.put("inv.yaml", fileWith("a"))
	wantDevices(t, s, "a")
}

// TestConfigMapSwap replaces the file as the kubelet does in a ConfigMap
// volume: the file is a link through the link ..data, which is replaced.
func TestConfigMapSwap(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	configMap(f, "v1", fileWith("a"))
	s, _ := open(f.join("inv.yaml"))
	wantDevices(t, s, "a")
	configMap(f, "v2", fileWith("b"))
	wantDevices(t, s, "b")
	f.check(os.RemoveAll(f.join("..v1")))
	wantDevices(t, s, "b")
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

// configMap makes version the volume's present one.
func configMap(f *folder, version, content string) {
	f.t.Helper()
	f.check(os.Mkdir(f.join(".."+version), 0o700))
	f.rewrite(filepath.Join(".."+version, "inv.yaml"), content)
	if err := os.Symlink(".."+version, f.join("..data_tmp")); err != nil {
		f.t.Skipf("no symbolic links here: %v", err)
	}
	f.check(os.Rename(f.join("..data_tmp"), f.join("..data")))
	if _, err := os.Lstat(f.join("inv.yaml")); errors.Is(err, fs.ErrNotExist) {
		f.check(os.Symlink(filepath.Join("..data", "inv.yaml"), f.join("inv.yaml")))
	}
}

// twoHalves is a good file whose first half is one, too, with fewer files.
func twoHalves(t *testing.T) (half, rest string) {
	t.Helper()
	half = head + "- instanceID: a\n  driver: {storePath: 'C:\\d'}\n  runtimeFiles:\n    system32:\n    - one.dll\n"
	rest = "    - two.dll\n- instanceID: b\n"
	devices, err := Parse("half", []byte(half))
	if err != nil || len(devices[0].System32) != 1 {
		t.Fatalf("the first half must be a good file, or this tests nothing: %v", err)
	}
	return half, rest
}

func wantBothHalves(t *testing.T, s *Source) {
	t.Helper()
	devices, err := s.Devices(t.Context())
	if err != nil || idsOf(devices) != "a b" || len(devices[0].System32) != 2 {
		t.Errorf("devices %+v, %v; want both halves of the file", devices, err)
	}
}

// TestTornBetweenReads has a writer that truncates the file, writes a half and
// goes on only when that was read.
func TestTornBetweenReads(t *testing.T) {
	t.Parallel()
	half, rest := twoHalves(t)
	f := newFolder(t)
	path := f.join("inv.yaml")
	f.put("inv.yaml", half+rest)
	s, logged := open(path)
	wantBothHalves(t, s)

	modTime := func() time.Time {
		info, err := os.Stat(path)
		f.check(err)
		return info.ModTime()
	}
	f.check(os.WriteFile(path, []byte(half), 0o600))
	clock := modTime()
	waits := 0
	s.reader.now = func() time.Time { return clock }
	s.reader.wait = func(context.Context, time.Duration) error {
		if waits++; waits == 1 {
			f.check(os.WriteFile(path, []byte(half+rest), 0o600))
			clock = modTime()
		} else {
			clock = clock.Add(s.reader.settle)
		}
		return nil
	}
	wantBothHalves(t, s)
	if waits != 2 {
		t.Errorf("waited %d times, want 2: once for each young version", waits)
	}
	if n := countLevel(logged, logrus.ErrorLevel); n != 0 || s.Err() != nil {
		t.Errorf("%d errors logged, Err() = %v", n, s.Err())
	}
}

// hookedFile calls atEOF once, when all of the file was read.
type hookedFile struct {
	fs.File
	atEOF func()
}

func (f *hookedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	if errors.Is(err, io.EOF) && f.atEOF != nil {
		f.atEOF()
		f.atEOF = nil
	}
	return n, err
}

// TestTornWithinRead changes the file between the two looks at its stamp.
func TestTornWithinRead(t *testing.T) {
	t.Parallel()
	half, rest := twoHalves(t)
	padded := half + "#" + strings.Repeat("x", len(rest)-2) + "\n"
	tests := []struct {
		name, first string
		finish      func(*folder)
	}{
		{"appended", half, func(f *folder) { f.rewrite("inv.yaml", half+rest) }},
		{"written in place, same size", padded, func(f *folder) { f.rewrite("inv.yaml", half+rest) }},
		{"renamed over", half, func(f *folder) { f.put("inv.yaml", half+rest) }},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			f.put("inv.yaml", tc.first)
			s, _ := open(f.join("inv.yaml"))
			opens := 0
			s.reader.open = func(path string) (fs.File, error) {
				file, err := os.Open(path)
				if opens++; opens > 1 {
					return file, err
				}
				return &hookedFile{File: file, atEOF: func() { tc.finish(f) }}, err
			}
			wantBothHalves(t, s)
			if opens != 2 {
				t.Errorf("opened %d times, want 2", opens)
			}
		})
	}
}

func TestFileThatNeverSettles(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	path := f.join("inv.yaml")
	f.put("inv.yaml", fileWith("a"))
	s, logged := open(path)
	wantDevices(t, s, "a")

	f.check(os.WriteFile(path, []byte(fileWith("b")), 0o600))
	s.reader.now = func() time.Time {
		info, err := os.Stat(path)
		f.check(err)
		return info.ModTime()
	}
	s.reader.wait = func(context.Context, time.Duration) error { return nil }
	wantDevices(t, s, "a")
	wantDevices(t, s, "a")
	if !errors.Is(s.Err(), errUnsettled) || countLevel(logged, logrus.ErrorLevel) != 1 {
		t.Errorf("Err() = %v, %d errors logged", s.Err(), countLevel(logged, logrus.ErrorLevel))
	}
	s.reader.now = func() time.Time { return time.Now().Add(time.Hour) }
	wantDevices(t, s, "b")
}

func TestFileFromTheFuture(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("a"))
	future := time.Now().Add(time.Hour)
	f.check(os.Chtimes(f.join("inv.yaml"), future, future))
	s, _ := open(f.join("inv.yaml"))
	waits := 0
	s.reader.wait = func(context.Context, time.Duration) error { waits++; return nil }
	wantDevices(t, s, "a")
	if waits != 1 {
		t.Errorf("waited %d times, want once", waits)
	}
}

func TestContextEndsWhileReading(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("a"))
	s, logged := open(f.join("inv.yaml"))
	wantDevices(t, s, "a")
	before := s.state.Load()

	future := time.Now().Add(time.Hour)
	f.put("inv.yaml", fileWith("b"))
	f.check(os.Chtimes(f.join("inv.yaml"), future, future))
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	s.reader.wait = func(ctx context.Context, d time.Duration) error {
		cancel(cause)
		return wait(ctx, time.Hour)
	}
	if devices, err := s.Devices(ctx); !errors.Is(err, cause) || devices != nil {
		t.Errorf("Devices = %v, %v", devices, err)
	}
	// Somebody else reads, and the context has ended already.
	s.reading <- struct{}{}
	if _, err := s.Devices(ctx); !errors.Is(err, cause) {
		t.Errorf("waiting for another reader: %v", err)
	}
	<-s.reading
	if s.state.Load() != before || countLevel(logged, logrus.ErrorLevel) != 0 {
		t.Error("an ended context changed what is known of the file")
	}
	s.reader.wait = func(context.Context, time.Duration) error { return nil }
	wantDevices(t, s, "b")
}

func TestFileSystemErrors(t *testing.T) {
	t.Parallel()
	busy := errors.New("used by another process")
	tests := []struct {
		name      string
		err       error
		times     int // opening fails so often
		want      string
		wantWaits int
		wantText  string
	}{
		{"passes", busy, 2, "b", 2, ""},
		{"stays", busy, 100, "a", 3, "open: used by another process; see that the path leads to a readable file"},
		{"permission", fs.ErrPermission, 100, "a", 0, "permission denied; let the program's user read the file"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			f.put("inv.yaml", fileWith("a"))
			s, _ := open(f.join("inv.yaml"))
			wantDevices(t, s, "a")
			f.put("inv.yaml", fileWith("b"))
			opens, waits := 0, 0
			s.reader.open = func(path string) (fs.File, error) {
				if opens++; opens <= tc.times {
					return nil, &fs.PathError{Op: "open", Path: path, Err: tc.err}
				}
				return os.Open(path)
			}
			s.reader.wait = func(context.Context, time.Duration) error { waits++; return nil }
			wantDevices(t, s, tc.want)
			if waits != tc.wantWaits {
				t.Errorf("waited %d times, want %d", waits, tc.wantWaits)
			}
			if err := s.Err(); (err != nil) != (tc.wantText != "") || err != nil && (!errors.Is(err, tc.err) || !strings.HasSuffix(err.Error(), "inv.yaml: "+tc.wantText)) {
				t.Errorf("Err() = %v, want %q", err, tc.wantText)
			}
			opens = 100 // repaired, and the file's stamp has not changed by that
			wantDevices(t, s, "b")
			if s.Err() != nil {
				t.Error(s.Err())
			}
		})
	}
}

// TestDevicesConcurrently asks while the file is being replaced: every answer
// is one of the versions, and none is older than one seen before.
func TestDevicesConcurrently(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("inv.yaml", fileWith("n0", "n0-too"))
	s, _ := open(f.join("inv.yaml"))
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			last := -1
			for !done.Load() {
				devices, err := s.Devices(t.Context())
				if err != nil || len(devices) != 2 || devices[1].InstanceID != devices[0].InstanceID+"-too" {
					t.Errorf("devices %q, %v", idsOf(devices), err)
					return
				}
				var n int
				if _, err := fmt.Sscanf(devices[0].InstanceID, "n%d", &n); err != nil || n < last {
					t.Errorf("version %q after n%d, %v", devices[0].InstanceID, last, err)
					return
				}
				last = n
			}
		})
	}
	for i := 1; i <= 100; i++ {
		id := fmt.Sprintf("n%d", i)
		f.put("inv.yaml", fileWith(id, id+"-too"))
		wantDevices(t, s, id+" "+id+"-too")
	}
	done.Store(true)
	readers.Wait()
}

func TestSamples(t *testing.T) {
	t.Parallel()
	node := 0
	sample := func(t *testing.T, name string) []discovery.Device {
		s, _ := open(filepath.Join("..", "..", "deployments", "inventory", name))
		devices, err := s.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return devices
	}
	t.Run("windows-g4dn.yaml", func(t *testing.T) {
		t.Parallel()
		t4 := discovery.Device{
			InstanceID:  `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00D8`,
			Description: "NVIDIA Tesla T4", VendorID: discovery.VendorNVIDIA, LocationPath: "PCIROOT(0)#PCI(1B00)", LUID: 0xC2F5,
			DriverVersion:   "31.0.15.5222",
			DriverStorePath: `C:\Windows\System32\DriverStore\FileRepository\nvgridsw_aws.inf_amd64_0f2a6b1c9d8e7354`,
			DedicatedMemory: 16106127360, NUMANode: &node, SupportsDisplay: true, SupportsCompute: true,
			System32: []discovery.RuntimeFile{
				{Source: "nvcudadebugger.dll", Destination: "nvcudadebugger.dll"},
				{Source: "nvcuda_loader64.dll", Destination: "nvcuda.dll"},
				{Source: "nvcuvid64.dll", Destination: "nvcuvid.dll"},
				{Source: "nvEncodeAPI64.dll", Destination: "nvEncodeAPI64.dll"},
				{Source: "nvapi64.dll", Destination: "nvapi64.dll"},
				{Source: "nvml_loader.dll", Destination: "nvml.dll"},
				{Source: "OpenCL64.dll", Destination: "OpenCL.dll"},
				{Source: "vulkan-1-x64.dll", Destination: "vulkan-1.dll"},
			},
			SysWOW64: []discovery.RuntimeFile{
				{Source: "nvcuda_loader32.dll", Destination: "nvcuda.dll"},
				{Source: "nvcuvid32.dll", Destination: "nvcuvid.dll"},
				{Source: "nvEncodeAPI.dll", Destination: "nvEncodeAPI.dll"},
				{Source: "nvapi.dll", Destination: "nvapi.dll"},
				{Source: "OpenCL32.dll", Destination: "OpenCL.dll"},
				{Source: "vulkan-1-x86.dll", Destination: "vulkan-1.dll"},
			},
		}
		second := t4.Clone()
		second.InstanceID = `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00E0`
		second.LocationPath = "PCIROOT(0)#PCI(1C00)"
		second.LUID = 0xD3A1
		if diff := cmp.Diff([]discovery.Device{t4, second}, sample(t, "windows-g4dn.yaml")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("linux-gpu-pv.yaml", func(t *testing.T) {
		t.Parallel()
		devices := sample(t, "linux-gpu-pv.yaml")
		if len(devices) != 1 {
			t.Fatalf("%d devices, want 1", len(devices))
		}
		d := devices[0]
		if d.VendorID != discovery.VendorNVIDIA || d.Kind() != discovery.KindDisplay || !d.Health.OK() || d.LocationPath != "" || d.System32 != nil || d.SysWOW64 != nil {
			t.Errorf("device %+v", d)
		}
		if diff := cmp.Diff([]discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}}, d.DeviceNodes); diff != "" {
			t.Errorf("device nodes (-want +got):\n%s", diff)
		}
		places := map[string]string{}
		for _, l := range d.Libraries {
			places[l.Source] = l.Destination
		}
		for _, path := range []string{
			"/usr/lib/wsl/drivers", "/usr/lib/wsl/lib/libd3d12.so", "/usr/lib/wsl/lib/libd3d12core.so", "/usr/lib/wsl/lib/libdxcore.so", "/usr/lib/wsl/lib/libcuda.so.1",
		} {
			if places[path] != path {
				t.Errorf("%s is mounted at %q", path, places[path])
			}
		}
		if got := places["/usr/lib/wsl/lib/nvidia-smi"]; got != "/usr/bin/nvidia-smi" {
			t.Errorf("nvidia-smi is mounted at %q", got)
		}
	})
}

// manyDevices is a file of n devices with the T4's runtime files.
func manyDevices(n int) string {
	var b strings.Builder
	b.WriteString(head)
	for i := range n {
		fmt.Fprintf(&b, `- instanceID: 'PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&%04X'
  description: NVIDIA Tesla T4
  locationPath: PCIROOT(%X)#PCI(1B00)
  driver:
    version: 31.0.15.5222
    storePath: C:\Windows\System32\DriverStore\FileRepository\nvgridsw_aws.inf_amd64_0f2a6b1c9d8e7354
  dedicatedMemory: 15Gi
  numaNode: 0
  display: true
  compute: true
  runtimeFiles:
    system32:
    - nvcudadebugger.dll
    - {source: nvcuda_loader64.dll, destination: nvcuda.dll}
    - {source: nvcuvid64.dll, destination: nvcuvid.dll}
    - nvEncodeAPI64.dll
    - nvapi64.dll
    - {source: nvml_loader.dll, destination: nvml.dll}
    - {source: OpenCL64.dll, destination: OpenCL.dll}
    - {source: vulkan-1-x64.dll, destination: vulkan-1.dll}
    sysWOW64:
    - {source: nvcuda_loader32.dll, destination: nvcuda.dll}
    - {source: nvcuvid32.dll, destination: nvcuvid.dll}
    - nvEncodeAPI.dll
    - nvapi.dll
    - {source: OpenCL32.dll, destination: OpenCL.dll}
    - {source: vulkan-1-x86.dll, destination: vulkan-1.dll}
`, i, i)
	}
	return b.String()
}

// BenchmarkDevicesUnchanged is what every hook and every Allocate pays.
func BenchmarkDevicesUnchanged(b *testing.B) {
	for _, n := range []int{2, 64} {
		b.Run(fmt.Sprintf("devices=%d", n), func(b *testing.B) {
			f := newFolder(b)
			f.put("inv.yaml", manyDevices(n))
			s, _ := open(f.join("inv.yaml"))
			b.ReportAllocs()
			for b.Loop() {
				if devices, err := s.Devices(b.Context()); err != nil || len(devices) != n {
					b.Fatal(len(devices), err)
				}
			}
		})
	}
}

func BenchmarkParse64(b *testing.B) {
	data := []byte(manyDevices(64))
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if devices, err := Parse("inv.yaml", data); err != nil || len(devices) != 64 {
			b.Fatal(len(devices), err)
		}
	}
}
