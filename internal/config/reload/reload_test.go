package reload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"directx-nri/internal/config"
	"directx-nri/internal/filewatch"
)

const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

// patience is how long a test waits for what must come, however slow the machine.
const patience = 30 * time.Second

// bed is a configuration file that is watched, and what its watcher tells.
type bed struct {
	t      *testing.T
	path   string
	w      *Watcher
	events chan string
	stop   func()
}

func newBed(t *testing.T, path string, poll time.Duration) *bed {
	t.Helper()
	b := &bed{t: t, path: path, events: make(chan string, 100)}
	read := func() (config.Config, error) { return config.Read(path) }
	initial, err := read()
	if err != nil {
		t.Fatal(err)
	}
	b.w = New(initial, Options{
		File: path, Read: read,
		Changed: func(now, before config.Config) {
			b.events <- "changed " + before.Log.Level + " to " + now.Log.Level
		},
		Refused: func(err error) { b.events <- "refused " + err.Error() },
		Pending: func(keys []string) { b.events <- "pending " + strings.Join(keys, ",") },
		Trouble: func(err error) { b.events <- "trouble " + err.Error() },
	})
	b.w.timing = filewatch.Timing{Settle: 20 * time.Millisecond, Most: 200 * time.Millisecond, Poll: poll}
	return b
}

func (b *bed) start() *bed {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.w.Run(ctx) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	}
	b.t.Cleanup(b.stop)
	return b
}

// replace puts another file in the file's place.
func (b *bed) replace(text string) {
	b.t.Helper()
	temp := b.path + ".new"
	if err := errors.Join(os.WriteFile(temp, []byte(head+text), 0o600), os.Rename(temp, b.path)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) expect(want string) {
	b.t.Helper()
	select {
	case got := <-b.events:
		if !strings.Contains(got, want) {
			b.t.Fatalf("told %q, want %q", got, want)
		}
	case <-time.After(patience):
		b.t.Fatalf("nothing is told, want %q", want)
	}
}

func (b *bed) level(want string) {
	b.t.Helper()
	if got := b.w.Current().Log.Level; got != want {
		b.t.Errorf("level %s is in force, want %s", got, want)
	}
}

func newPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "config.yaml")
}

func TestChangeIsInForce(t *testing.T) {
	t.Parallel()
	b := newBed(t, newPath(t), time.Hour).start()
	b.replace("log: {level: debug}\n")
	b.expect("changed info to debug")
	b.level("debug")
	if err := os.WriteFile(b.path, []byte(head+"log: {level: warn}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.expect("changed debug to warn")
	if err := os.Remove(b.path); err != nil {
		t.Fatal(err)
	}
	b.expect("changed warn to info")
}

func TestBadFileIsRefusedOnceAndTheOldOneStays(t *testing.T) {
	t.Parallel()
	b := newBed(t, newPath(t), time.Hour).start()
	b.replace("log: {level: debug}\n")
	b.expect("changed info to debug")
	b.replace("log: {level: loud}\n")
	b.expect("refused ")
	b.level("debug")
	// Written anew, it is bad in the same way, and in another one after that.
	b.replace("log: {level: loud}\n")
	b.replace("log: {level: loud}\nreplicas: 0\n")
	b.expect("replicas: 0 is not possible")
	b.level("debug")
	b.replace("log: {level: error}\n")
	b.expect("changed debug to error")
}

func TestWhatTakesARestartIsToldAndKept(t *testing.T) {
	t.Parallel()
	b := newBed(t, newPath(t), time.Hour).start()
	before := b.w.Current()
	b.replace("log: {level: debug}\ninjection: kubelet\nservedBy: " + other(before.ServedBy) + "\n")
	b.expect("pending injection,servedBy")
	b.expect("changed info to debug")
	if now := b.w.Current(); now.ServedBy != before.ServedBy || now.Injection != before.Injection {
		t.Errorf("%+v", now)
	}
	b.replace("log: {level: debug}\n")
	b.expect("pending ")
	b.replace("log: {level: warn}\n")
	b.expect("changed debug to warn")
}

func other(servedBy string) string {
	if servedBy == config.ServedByNRI {
		return config.ServedByShim
	}
	return config.ServedByNRI
}

func TestChangeBeforeRun(t *testing.T) {
	t.Parallel()
	b := newBed(t, newPath(t), time.Hour)
	b.replace("log: {level: debug}\n")
	b.start()
	b.expect("changed info to debug")
}

// TestFolderComesLater has the file's folder made after the start: the poll finds
// it, since nothing is there to watch.
func TestFolderComesLater(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "etc", "config.yaml")
	b := newBed(t, path, 20*time.Millisecond).start()
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	b.replace("log: {level: debug}\n")
	b.expect("changed info to debug")
}

// TestConfigMap swaps the links by which the kubelet gives a volume another
// content.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("links take rights of their own there")
	}
	folder := t.TempDir()
	path := filepath.Join(folder, "config.yaml")
	publish := func(version, text string) {
		t.Helper()
		if err := errors.Join(
			os.Mkdir(filepath.Join(folder, version), 0o755),
			os.WriteFile(filepath.Join(folder, version, "config.yaml"), []byte(head+text), 0o644),
			os.Symlink(version, filepath.Join(folder, "..data_tmp")),
			os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")),
		); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", "log: {level: warn}\n")
	if err := os.Symlink(filepath.Join("..data", "config.yaml"), path); err != nil {
		t.Fatal(err)
	}
	b := newBed(t, path, time.Hour).start()
	publish("..2", "log: {level: debug}\n")
	b.expect("changed warn to debug")
	publish("..3", "log: {level: deb}\n")
	b.expect("refused ")
	publish("..4", "log: {level: error}\n")
	b.expect("changed debug to error")
}

// TestManyChanges ends with what the last one says, whatever was skipped.
func TestManyChanges(t *testing.T) {
	t.Parallel()
	b := newBed(t, newPath(t), time.Hour).start()
	for i := range 50 {
		b.replace("log: {level: " + []string{"debug", "warn", "loud"}[i%3] + "}\n")
	}
	b.replace("log: {level: error}\n")
	deadline := time.After(patience)
	for b.w.Current().Log.Level != "error" {
		select {
		case <-b.events:
		case <-deadline:
			t.Fatalf("%s is in force", b.w.Current().Log.Level)
		}
	}
}

// TestOthersInTheFolder holds that what else is written beside the file does not
// have it read again.
func TestOthersInTheFolder(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"/etc/directx-nri/config.yaml": true, "/etc/directx-nri/Config.YAML": true, "/etc/directx-nri/..data": true,
		"/etc/directx-nri/config.yaml" + config.LastGood: false, "/etc/directx-nri/shim.log": false, "/etc/directx-nri/allocations": false,
	} {
		if got := concerns(filepath.FromSlash(name), filepath.FromSlash("/etc/directx-nri/config.yaml")); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestStampTellsMissing(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	if !stampOf(path).missing {
		t.Error("there is no file")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(false, stampOf(path).missing); diff != "" {
		t.Error(diff)
	}
}
