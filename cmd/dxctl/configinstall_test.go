package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/config"
	"directx-nri/internal/durable"
	"directx-nri/internal/filewatch"
)

// mount is a folder that stands for a mounted ConfigMap, and the node that it is
// installed on.
type mount struct {
	t                              *testing.T
	from, config, inventory, state string
}

func newMount(t *testing.T) mount {
	t.Helper()
	folder := t.TempDir()
	m := mount{
		t: t, from: filepath.Join(folder, "volume"), config: filepath.Join(folder, "etc", "config.yaml"),
		inventory: filepath.Join(folder, "etc", "inventory.yaml"), state: filepath.Join(folder, "lib", "state"),
	}
	if err := os.Mkdir(m.from, 0o700); err != nil {
		t.Fatal(err)
	}
	return m
}

// set has the volume hold these files, and no others.
func (m mount) set(files map[string]string) {
	m.t.Helper()
	for _, name := range []string{configName, inventoryName} {
		path := filepath.Join(m.from, name)
		text, there := files[name]
		if !there {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				m.t.Fatal(err)
			}
			continue
		}
		m.write(path, text)
	}
}

func (m mount) write(path, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

func (m mount) options() configInstallOptions {
	return configInstallOptions{from: m.from, config: m.config, stateDir: m.state}
}

func (m mount) install() (string, error) {
	m.t.Helper()
	o := m.options()
	var out bytes.Buffer
	err := o.run(m.t.Context(), &out, &out)
	return strings.ReplaceAll(out.String(), filepath.Dir(m.config), "ETC"), err
}

func (m mount) must(want string) {
	m.t.Helper()
	got, err := m.install()
	if err != nil {
		m.t.Fatal(err)
	}
	if diff := cmp.Diff(filepath.FromSlash(want), got); diff != "" {
		m.t.Fatalf("(-want +got):\n%s", diff)
	}
}

// refuses checks that nothing is installed, and that the node is left as it is.
func (m mount) refuses(want string) {
	m.t.Helper()
	before := m.node()
	out, err := m.install()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
		m.t.Errorf("error %v, want one that says %q; output %q", err, want, out)
	}
	if diff := cmp.Diff(before, m.node()); diff != "" {
		m.t.Errorf("the node has changed (-before +after):\n%s", diff)
	}
}

// node returns the files of the node by name, the record of ours too.
func (m mount) node() map[string]string {
	m.t.Helper()
	files := map[string]string{}
	for _, folder := range []string{filepath.Dir(m.config), m.state} {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			m.t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Name() == ownFilesLock {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
			if err != nil {
				m.t.Fatal(err)
			}
			files[entry.Name()] = string(text)
		}
	}
	return files
}

func (m mount) has(want map[string]string) {
	m.t.Helper()
	got := m.node()
	delete(got, ownFilesName)
	if diff := cmp.Diff(want, got); diff != "" {
		m.t.Errorf("(-want +got):\n%s", diff)
	}
}

const (
	someConfig  = configHead + "replicas: 3\n"
	otherConfig = configHead + "replicas: 4\n"
	someGPUs    = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: []\n"
)

func (m mount) naming() string { return configHead + "inventory: '" + m.inventory + "'\n" }

func TestConfigInstall(t *testing.T) {
	t.Parallel()
	m := newMount(t)
	m.set(map[string]string{configName: m.naming(), inventoryName: someGPUs})
	m.must("ETC/inventory.yaml is installed\nETC/config.yaml is installed\n")
	m.has(map[string]string{configName: m.naming(), inventoryName: someGPUs})
	// As the programs read it.
	if c, err := config.Read(m.config); err != nil || c.Inventory != m.inventory {
		t.Errorf("%+v, %v", c, err)
	}

	before := map[string]time.Time{}
	for _, path := range []string{m.config, m.inventory, filepath.Join(m.state, ownFilesName)} {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		before[path] = info.ModTime()
	}
	m.must("ETC is up to date\n")
	for path, was := range before {
		if info, err := os.Stat(path); err != nil || !info.ModTime().Equal(was) {
			t.Errorf("%s was written again: %v", path, err)
		}
	}

	m.set(map[string]string{configName: otherConfig, inventoryName: someGPUs})
	m.must("ETC/config.yaml is installed\n")
	// The configuration does not name it any more, and so it goes after that.
	m.set(map[string]string{configName: someConfig})
	m.must("ETC/config.yaml is installed\nETC/inventory.yaml is removed\n")
	m.has(map[string]string{configName: someConfig})
	m.set(map[string]string{inventoryName: someGPUs})
	m.must("ETC/inventory.yaml is installed\nETC/config.yaml is removed\n")
	m.has(map[string]string{inventoryName: someGPUs})
	// Somebody has cleared the folder.
	if err := os.RemoveAll(filepath.Dir(m.config)); err != nil {
		t.Fatal(err)
	}
	m.must("ETC/inventory.yaml is installed\n")
}

func TestConfigInstallChecksFirst(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files func(m mount) map[string]string
		want  string
	}{
		"a wrong configuration": {func(mount) map[string]string {
			return map[string]string{configName: configHead + "replicas: 0\n", inventoryName: someGPUs}
		}, "config.yaml:3: replicas: 0 is not possible"},
		"a wrong inventory": {func(mount) map[string]string {
			return map[string]string{configName: otherConfig, inventoryName: "devices: 1\n"}
		}, "inventory.yaml:1: "},
		"an inventory that is not there": {func(m mount) map[string]string {
			return map[string]string{configName: m.naming()}
		}, "which is not there: add inventory.yaml"},
		"nothing": {func(mount) map[string]string { return nil }, "has neither config.yaml nor inventory.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMount(t)
			m.set(map[string]string{configName: someConfig, inventoryName: someGPUs})
			m.must("ETC/inventory.yaml is installed\nETC/config.yaml is installed\n")
			m.set(test.files(m))
			m.refuses(test.want)
		})
	}
	m := newMount(t)
	m.from += ".none"
	m.refuses("is the ConfigMap mounted there?")
	if len(m.node()) != 0 {
		t.Errorf("%v", m.node())
	}
}

func TestConfigInstallLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	const mine = configHead + "replicas: 7 # mine\n"
	for name, test := range map[string]struct {
		spoil func(m mount)
		want  string // "" when that is well
	}{
		"written before": {func(m mount) {
			m.write(m.config, mine)
		}, "was not installed by this program, and is left alone: move it away"},
		"says the same": {func(m mount) { m.write(m.config, someConfig) }, ""},
		"changed since": {func(m mount) {
			m.must("ETC/inventory.yaml is installed\nETC/config.yaml is installed\n")
			m.write(m.config, mine)
		}, "was changed by hand since it was installed, and is left alone: move it away"},
		"an inventory of before": {func(m mount) {
			m.write(m.inventory, "# mine\n"+someGPUs)
		}, "inventory.yaml was not installed by this program"},
		"of 'runtime install', which no person has written": {func(m mount) {
			text, err := shimSettings{Inventory: "/gpus.yaml"}.text()
			if err != nil {
				m.t.Fatal(err)
			}
			m.write(m.config, string(text))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMount(t)
			m.set(map[string]string{configName: someConfig, inventoryName: someGPUs})
			test.spoil(m)
			if test.want != "" {
				m.refuses(test.want)
				return
			}
			if out, err := m.install(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			m.has(map[string]string{configName: someConfig, inventoryName: someGPUs})
		})
	}
}

// TestConfigInstallForgetsWhatIsChanged leaves a file to whoever has changed it once
// the volume does not have it.
func TestConfigInstallForgetsWhatIsChanged(t *testing.T) {
	t.Parallel()
	m := newMount(t)
	m.set(map[string]string{configName: someConfig, inventoryName: someGPUs})
	m.must("ETC/inventory.yaml is installed\nETC/config.yaml is installed\n")
	m.write(m.inventory, "# mine\n"+someGPUs)
	m.set(map[string]string{configName: someConfig})
	m.must("ETC/inventory.yaml is left: it was changed by hand, and is not installed any more\n")
	m.must("ETC is up to date\n")
	m.has(map[string]string{configName: someConfig, inventoryName: "# mine\n" + someGPUs})
}

// TestConfigInstallIsBrokenOff has what the record says before a file is written,
// and the file as it was or as it comes.
func TestConfigInstallIsBrokenOff(t *testing.T) {
	t.Parallel()
	for name, present := range map[string]string{"before the file": someConfig, "after the file": otherConfig} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMount(t)
			own, err := openOwnFiles(m.state)
			if err != nil {
				t.Fatal(err)
			}
			own.record.Files[m.config] = []string{hash([]byte(someConfig)), hash([]byte(otherConfig))}
			if err := own.save(); err != nil {
				t.Fatal(err)
			}
			m.write(m.config, present)
			m.set(map[string]string{configName: otherConfig})
			if out, err := m.install(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			m.has(map[string]string{configName: otherConfig})
			m.set(map[string]string{inventoryName: someGPUs})
			m.must("ETC/inventory.yaml is installed\nETC/config.yaml is removed\n")
		})
	}
}

// TestOwnFileOfAFailedWrite stays ours as it was.
func TestOwnFileOfAFailedWrite(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("modes do not keep anybody out there")
	}
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	m.must("ETC/config.yaml is installed\n")
	m.set(map[string]string{configName: otherConfig})
	if err := os.Chmod(filepath.Dir(m.config), 0o777); err != nil {
		t.Fatal(err)
	}
	if out, err := m.install(); !errors.Is(err, durable.ErrNotPrivate) {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Chmod(filepath.Dir(m.config), 0o700); err != nil {
		t.Fatal(err)
	}
	m.has(map[string]string{configName: someConfig})
	m.must("ETC/config.yaml is installed\n")
}

func TestInOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		inventory []byte
		first     string
	}{{[]byte(someGPUs), inventoryName}, {nil, configName}} {
		if got := inOrder(step{path: inventoryName, text: test.inventory}, step{path: configName}); got[0].path != test.first || len(got) != 2 {
			t.Errorf("%q: %v", test.inventory, got)
		}
	}
}

// TestConfigInstallOfWhatOthersCanWrite refuses what would be run as the system.
func TestConfigInstallOfWhatOthersCanWrite(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("modes do not let anybody in there")
	}
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	if err := os.Chmod(m.from, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := m.install(); !errors.Is(err, durable.ErrNotPrivate) {
		t.Errorf("a folder: %v", err)
	}
	if err := errors.Join(os.Chmod(m.from, 0o755), os.Chmod(filepath.Join(m.from, configName), 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.install(); !errors.Is(err, durable.ErrUntrusted) {
		t.Errorf("a file: %v", err)
	}
	m.has(map[string]string{})

	// What is said to be ours is overwritten and removed.
	if err := os.Chmod(filepath.Join(m.from, configName), 0o644); err != nil {
		t.Fatal(err)
	}
	m.must("ETC/config.yaml is installed\n")
	if err := os.Chmod(filepath.Join(m.state, ownFilesName), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := m.install(); !errors.Is(err, durable.ErrUntrusted) {
		t.Errorf("the record: %v", err)
	}
}

// TestConfigInstallLeavesALink of somebody alone, wherever it leads.
func TestConfigInstallLeavesALink(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("links take rights of their own there")
	}
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	m.must("ETC/config.yaml is installed\n")
	elsewhere := filepath.Join(filepath.Dir(m.from), "elsewhere")
	if err := errors.Join(os.Rename(m.config, elsewhere), os.Symlink(elsewhere, m.config)); err != nil {
		t.Fatal(err)
	}
	m.set(map[string]string{configName: otherConfig})
	if _, err := m.install(); !errors.Is(err, errChangedByHand) {
		t.Errorf("%v", err)
	}
	if got, err := os.Readlink(m.config); err != nil || got != elsewhere {
		t.Errorf("%q, %v", got, err)
	}
}

// TestReadWantedOfOneVersion reads a volume while the kubelet changes it.
func TestReadWantedOfOneVersion(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("links take rights of their own there")
	}
	m := newMount(t)
	for _, version := range []string{"..1", "..2"} {
		m.write(filepath.Join(m.from, version, configName), version)
		m.write(filepath.Join(m.from, version, inventoryName), version)
	}
	link := func(version string) error {
		temp := filepath.Join(m.from, "..data_tmp")
		return errors.Join(os.Symlink(version, temp), os.Rename(temp, filepath.Join(m.from, filewatch.Data)))
	}
	if err := link("..1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{configName, inventoryName} {
		if err := os.Symlink(filepath.Join(filewatch.Data, name), filepath.Join(m.from, name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	swapped := make(chan error, 1)
	go func() {
		var err error
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			err = link([]string{"..2", "..1"}[i%2])
			time.Sleep(20 * time.Microsecond)
		}
		swapped <- err
	}()
	for range 2000 {
		if w, err := readWanted(m.from); err == nil && !bytes.Equal(w.config, w.inventory) {
			t.Fatalf("config.yaml of %s with inventory.yaml of %s", w.config, w.inventory)
		}
	}
	cancel()
	if err := <-swapped; err != nil {
		t.Fatal(err)
	}
	if w, err := readWanted(m.from); err != nil || !bytes.Equal(w.config, w.inventory) || w.config == nil {
		t.Errorf("%q, %v", w, err)
	}
}

func TestConfigInstallNeedsItsRecord(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"torn": "{", "of a later version": `{"format": 2}`} {
		m := newMount(t)
		m.set(map[string]string{configName: someConfig})
		m.write(filepath.Join(m.state, ownFilesName), text)
		before := m.node()
		if _, err := m.install(); err == nil || !strings.Contains(err.Error(), ownFilesName) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, m.node()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDecideStep(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name                string
		state               ownState
		wanted, same, known bool
		want                action
		err                 error
	}{
		{"new", ownMissing, true, false, false, actionPut, nil},
		{"somebody has removed it", ownMissing, true, false, true, actionPut, nil},
		{"another version", ownOurs, true, false, true, actionPut, nil},
		{"up to date", ownOurs, true, true, true, actionNone, nil},
		{"as 'runtime install' has it, and not known yet", ownOurs, true, true, false, actionPut, nil},
		{"changed by hand", ownChanged, true, false, true, actionNone, errChangedByHand},
		{"by hand", ownForeign, true, false, false, actionNone, errNotInstalled},
		{"by hand, and the same", ownForeign, true, true, false, actionNone, nil},
		{"neither wanted nor there", ownMissing, false, false, false, actionNone, nil},
		{"not wanted any more", ownOurs, false, false, true, actionRemove, nil},
		{"not wanted, of 'runtime install'", ownOurs, false, false, false, actionNone, nil},
		{"not wanted any more, changed by hand", ownChanged, false, false, true, actionForget, nil},
		{"not wanted any more, removed by hand", ownMissing, false, false, true, actionForget, nil},
		{"not wanted, by hand", ownForeign, false, false, false, actionNone, nil},
	} {
		got, err := decideStep(test.state, test.wanted, test.same, test.known)
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %v, %v", test.name, got, err)
		}
	}
}

func TestConfigInstallUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--from", "/x", "--config", "relative"}, {"--from", "/x", "--state-dir", "relative"}} {
		if out, err := ask(t, append([]string{"config", "install"}, args...)...); err == nil || out != "" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// told is what a program tells, a line at a time.
type told struct {
	mu    sync.Mutex
	lines []string
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *told) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// TestConfigInstallWatch follows a volume that the kubelet changes by its link.
func TestConfigInstallWatch(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("links take rights of their own there")
	}
	m := newMount(t)
	publish := func(version, text string) {
		t.Helper()
		m.write(filepath.Join(m.from, version, configName), text)
		if err := errors.Join(
			os.Symlink(version, filepath.Join(m.from, "..data_tmp")),
			os.Rename(filepath.Join(m.from, "..data_tmp"), filepath.Join(m.from, filewatch.Data)),
		); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", someConfig)
	if err := os.Symlink(filepath.Join(filewatch.Data, configName), filepath.Join(m.from, configName)); err != nil {
		t.Fatal(err)
	}
	var out told
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	o := m.options()
	o.timing = filewatch.Timing{Settle: 10 * time.Millisecond, Most: 100 * time.Millisecond, Poll: 50 * time.Millisecond}
	go func() {
		logger := logrus.New()
		logger.SetOutput(&out)
		ended <- o.follow(ctx, logger)
	}()
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not come:\n%s", what, out.lines)
			}
		}
	}
	is := func(text string) func() bool {
		return func() bool { got, _ := os.ReadFile(m.config); return string(got) == text }
	}
	until("the first version", is(someConfig))
	publish("..2", configHead+"replicas: none\n")
	until("the error", func() bool { return out.count("level=error") == 1 })
	publish("..3", otherConfig)
	until("the mended version", is(otherConfig))
	until("that it is mended", func() bool { return out.count("has what the folder has again") == 1 })

	const mine = configHead + "replicas: 7 # mine\n"
	m.write(m.config, mine)
	until("that a person has changed it", func() bool { return out.count("changed by hand") == 1 })
	publish("..4", someConfig)
	time.Sleep(4 * o.timing.Poll) // Looked at again and again, it is told once.
	if !is(mine)() || out.count("level=error") != 2 {
		t.Errorf("%q", out.lines)
	}
	if err := os.Remove(m.config); err != nil {
		t.Fatal(err)
	}
	until("that it is moved away", is(someConfig))
	// Another program of the node asks for less.
	publish("..5", configHead+"log: {level: error, format: json}\n")
	until("the last version", is(configHead+"log: {level: error, format: json}\n"))
	publish("..6", configHead+"replicas: none\n")
	until("an error as JSON", func() bool { return out.count(`"level":"error"`) == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestDoctorSeesInstalledFiles(t *testing.T) {
	t.Parallel()
	m := newMount(t)
	look := func(want doctor.Installed) {
		t.Helper()
		if diff := cmp.Diff(want, installed(m.state)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	look(doctor.Installed{})
	m.set(map[string]string{configName: someConfig, inventoryName: someGPUs})
	m.must("ETC/inventory.yaml is installed\nETC/config.yaml is installed\n")
	record := filepath.Join(m.state, ownFilesName)
	look(doctor.Installed{Record: record})
	m.write(m.config, someConfig+"# mine\n")
	if err := os.Remove(m.inventory); err != nil {
		t.Fatal(err)
	}
	look(doctor.Installed{Record: record, Changed: []string{m.config}, Missing: []string{m.inventory}})
	m.write(record, "{")
	if got := installed(m.state); got.Err == nil || got.Record != record {
		t.Errorf("%+v", got)
	}
}

// TestConfigInstallAtOnce has two pods be at it, each with files of its own: what
// one remembers is not lost by what the other does.
func TestConfigInstallAtOnce(t *testing.T) {
	t.Parallel()
	m := newMount(t)
	other := m
	other.from += "2"
	if err := os.Mkdir(other.from, 0o700); err != nil {
		t.Fatal(err)
	}
	m.set(map[string]string{configName: someConfig, inventoryName: someGPUs})
	other.set(map[string]string{configName: otherConfig})
	var group sync.WaitGroup
	for _, m := range []mount{m, other} {
		group.Go(func() {
			for range 50 {
				o := m.options()
				if _, err := o.install(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	// Whoever comes last decides, and all is ours.
	if out, err := m.install(); err != nil {
		t.Error(err, out)
	}
	m.has(map[string]string{configName: someConfig, inventoryName: someGPUs})
	m.set(map[string]string{inventoryName: someGPUs})
	m.must("ETC/config.yaml is removed\n")
}

// TestConfigInstallWritesNothingWithoutNeed, not even a lock: the folders may be
// on a file system that is read-only.
func TestConfigInstallWritesNothingWithoutNeed(t *testing.T) {
	t.Parallel()
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	m.must("ETC/config.yaml is installed\n")
	lock := filepath.Join(m.state, ownFilesLock)
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	m.must("ETC is up to date\n")
	if exists(lock) {
		t.Error("a lock was taken")
	}
}

// TestConfigInstallClosesWhatIsOpen to others: the programs would refuse to read it.
func TestConfigInstallClosesWhatIsOpen(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("modes do not let anybody in there")
	}
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	m.must("ETC/config.yaml is installed\n")
	if err := os.Chmod(m.config, 0o666); err != nil {
		t.Fatal(err)
	}
	m.must("ETC/config.yaml is installed\n")
	if _, err := config.Read(m.config); err != nil {
		t.Error(err)
	}
	// What others may have put into the folder is not ours to judge.
	if err := os.Chmod(filepath.Dir(m.config), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := m.install(); !errors.Is(err, durable.ErrNotPrivate) {
		t.Errorf("%v", err)
	}
}

// TestOwnFileThatIsJustWritten by somebody, between the decision and the writing,
// stays theirs.
func TestOwnFileThatIsJustWritten(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"ours before": true, "new": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMount(t)
			own, err := openOwnFiles(m.state)
			if err != nil {
				t.Fatal(err)
			}
			if known {
				if err := own.put(m.config, []byte(someConfig)); err != nil {
					t.Fatal(err)
				}
			}
			m.write(m.config, "mine")
			if err := own.put(m.config, []byte(otherConfig)); !errors.Is(err, errJustWritten) {
				t.Errorf("%v", err)
			}
			m.has(map[string]string{configName: "mine"})
		})
	}
}

// TestConfigInstallOfAPathInOtherWords knows its file again.
func TestConfigInstallOfAPathInOtherWords(t *testing.T) {
	t.Parallel()
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	m.must("ETC/config.yaml is installed\n")
	other := m
	other.config = filepath.Dir(m.config) + string(filepath.Separator) + "." + string(filepath.Separator) + configName
	other.set(map[string]string{configName: otherConfig})
	if out, err := other.install(); err != nil {
		t.Error(err, out)
	}
	own, err := openOwnFiles(m.state)
	if err != nil || len(own.paths()) != 1 {
		t.Errorf("%v, %v", own.paths(), err)
	}
}

// TestConfigInstallPassesOver what else the ConfigMap has.
func TestConfigInstallPassesOver(t *testing.T) {
	t.Parallel()
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	m.write(filepath.Join(m.from, "notes.txt"), "x")
	m.must("ETC/config.yaml is installed\n")
	m.has(map[string]string{configName: someConfig})
}

// TestConfigInstallOfOddFiles refuses each with a line, and ends.
func TestConfigInstallOfOddFiles(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing": "", "no text": "\xff\xfe\x00", "no end": "a: [", "larger than is read": configHead + strings.Repeat("#", mostOwn),
		"larger than a program reads": configHead + strings.Repeat("#", 1<<20), "many documents": someConfig + "---\n" + someConfig,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, file := range []string{configName, inventoryName} {
				m := newMount(t)
				files := map[string]string{configName: someConfig}
				files[file] = text
				m.set(files)
				m.refuses(m.from)
			}
		})
	}
	m := newMount(t)
	m.set(map[string]string{configName: someConfig})
	if err := os.Mkdir(filepath.Join(m.from, inventoryName), 0o700); err != nil {
		t.Fatal(err)
	}
	m.refuses("is not a regular file")
	if err := os.Remove(filepath.Join(m.from, inventoryName)); err != nil {
		t.Fatal(err)
	}
	// A folder in the file's place on the node is nobody's to remove.
	if err := os.MkdirAll(m.config, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := m.install(); !errors.Is(err, errNotInstalled) {
		t.Errorf("%v", err)
	}
}
