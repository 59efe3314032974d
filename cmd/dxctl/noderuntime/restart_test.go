//go:build unix

package noderuntime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/containerdtest"
)

func mustRead(t *testing.T, b *containerdtest.FakeNode) containerd.ChangeRecord {
	t.Helper()
	r, err := containerd.ReadRecord(b.State)
	testutil.NoError(t, err)
	return r
}

// checkRemoved fails the test unless the node is as it was before it was configured.
func checkRemoved(t *testing.T, b *containerdtest.FakeNode, original string) {
	t.Helper()
	if got := b.Read(t); got != original || durable.Exists(b.State) {
		t.Errorf("the state directory is left: %t; the file is\n%q\nand was\n%q", durable.Exists(b.State), got, original)
	}
	checkLoaded(t, b, "removed", false)
}

// TestKilled: what a run that was killed leaves is finished by the next one.
func TestKilled(t *testing.T) {
	t.Parallel()
	const original = "version = 2 # mine" // without an end of line
	for name, killed := range map[string]struct {
		file      bool // The file is written.
		restarted bool
		undone    bool // The file was restored, because containerd did not start with the change.
	}{
		"before the file": {}, "before the restart": {file: true}, "after the restart": {file: true, restarted: true}, "before the second restart": {undone: true},
	} {
		for _, isSecond := range []bool{false, true} {
			for _, next := range []string{"configure", "refused", "unconfigure"} {
				t.Run(fmt.Sprintf("%s, second %t, %s", name, isSecond, next), func(t *testing.T) {
					t.Parallel()
					b := containerdtest.New(t, original)
					configure := []string{"configure"}
					if isSecond {
						must(t, b, append([]string{"configure", "--no-nri"}, b.Restart()...)...)
						configure = append(configure, "--add-handler", "directx")
					}
					before, left := b.Read(t), mustRead(t, b)
					must(t, b, configure...)
					changed := b.Read(t)
					if !killed.undone {
						left = mustRead(t, b)
					}
					left.BeginRestart()
					testutil.NoError(t, left.Save(b.State))
					if !killed.file {
						testutil.WriteFile(t, b.Config, before, 0o640)
					}
					if killed.restarted {
						testutil.WriteFile(t, filepath.Join(b.Root, "restarted"), "", 0o600)
					}
					switch {
					case next == "configure":
						must(t, b, append(configure, b.Restart()...)...)
						checkSettled(t, b, changed, false)
						checkLoaded(t, b, "configured", true)
					case next == "refused" && !killed.restarted:
						// containerd starts with the file before the change only.
						testutil.WriteFile(t, filepath.Join(b.Root, "accepted"), before, 0o640)
						accept := fmt.Sprintf("cmp -s %s %s && touch %s", b.Config, filepath.Join(b.Root, "accepted"), filepath.Join(b.Root, "restarted"))
						_, _, err := run(t, b, append(configure, "--restart", "--restart-command", accept)...)
						if err == nil {
							t.Error("containerd refuses the file, and the command succeeded")
						}
						checkSettled(t, b, before, true)
						checkLoaded(t, b, "restored", isSecond)
					}
					must(t, b, append([]string{"unconfigure"}, b.Restart()...)...)
					checkRemoved(t, b, original)
				})
			}
		}
	}
}

// checkSettled fails the test unless the file has the content want, nothing is left to do, and the
// record has a failure or none.
func checkSettled(t *testing.T, b *containerdtest.FakeNode, want string, failed bool) {
	t.Helper()
	if diff := cmp.Diff(want, b.Read(t)); diff != "" {
		t.Errorf("the file (-want +got):\n%s", diff)
	}
	r := mustRead(t, b)
	if r.Pending != 0 || r.RestartDue {
		t.Errorf("something is left to do: %+v", r)
	}
	if (r.Failure != nil) != failed {
		t.Errorf("the failure is %v, want one: %t", r.Failure, failed)
	}
}

// TestFailureUndoesItsOwnChange: earlier changes, and those of others meanwhile, are kept. The
// restart of an unconfiguration that fails stays due.
func TestFailureUndoesItsOwnChange(t *testing.T) {
	t.Parallel()
	const others = "# of another program\n"
	for name, restartedByOthers := range map[string]bool{"the first change was restarted for": false, "others have restarted containerd since": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := containerdtest.New(t, containerdtest.Config)
			if restartedByOthers {
				must(t, b, "configure")
				testutil.WriteFile(t, filepath.Join(b.Root, "restarted"), "", 0o600)
				must(t, b, "configure", "--restart", "--restart-command", "false") // Nothing is left to restart for.
			} else {
				must(t, b, append([]string{"configure"}, b.Restart()...)...)
			}
			first := b.Read(t)
			edit := fmt.Sprintf("grep -q 'another program' %s || printf '%%s\\n' '%s' >> %[1]s", b.Config, strings.TrimSpace(others))
			_, _, err := run(t, b, "configure", "--add-handler", "directx", "--restart", "--restart-command", edit, "--restart-timeout", "1500ms")
			testutil.CheckError(t, "configure", err, "was restored, and containerd runs with it")
			checkSettled(t, b, first+others, true)
			if r := mustRead(t, b); len(r.Edits) == 0 {
				t.Errorf("the earlier change is not recorded: %+v", r)
			}
			_, _, err = run(t, b, "unconfigure", "--restart", "--restart-command", "false")
			testutil.CheckError(t, "unconfigure", err, "run the command again")
			if b.Read(t) != containerdtest.Config+others || !mustRead(t, b).RestartDue {
				t.Errorf("unconfigure: a restart is due: %t; the file is\n%s", mustRead(t, b).RestartDue, b.Read(t))
			}
			must(t, b, append([]string{"unconfigure"}, b.Restart()...)...)
			checkRemoved(t, b, containerdtest.Config+others)
		})
	}
}

// TestUnconfigureCannotWrite: no restart is due for a change that was not made.
func TestUnconfigureCannotWrite(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	must(t, b, append([]string{"configure"}, b.Restart()...)...)
	configured, record := b.Read(t), mustRead(t, b)
	const pathMax = 4096 // of Linux, with the zero byte: here the name of a temporary file is too long
	dir := b.Root + strings.Repeat("/"+strings.Repeat("d", 200), pathMax/201-1)
	b.Config = filepath.Join(dir+"/"+strings.Repeat("d", pathMax-len(dir)-10), "file")
	testutil.WriteFile(t, b.Config, configured, 0o640)
	record.Config = b.Config
	testutil.NoError(t, record.Save(b.State))
	_, _, err := run(t, b, append([]string{"unconfigure"}, b.Restart()...)...)
	if r := mustRead(t, b); !errors.Is(err, syscall.ENAMETOOLONG) || r.RestartDue || b.Read(t) != configured {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestUnknownUnit: nothing is left to do after a restart that systemd cannot do.
func TestUnknownUnit(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	unknown := []string{"--restart", "--service", "directx-nri-no-such-unit"}
	_, _, err := run(t, b, append([]string{"configure"}, unknown...)...)
	testutil.CheckError(t, "configure", err, b.Config+" was not changed: systemd cannot restart directx-nri-no-such-unit: ")
	checkRemoved(t, b, containerdtest.Config)
	must(t, b, append([]string{"configure"}, b.Restart()...)...)
	configured := b.Read(t)
	_, _, err = run(t, b, append([]string{"unconfigure"}, unknown...)...)
	testutil.CheckError(t, "unconfigure", err, "nothing was changed: systemd cannot restart directx-nri-no-such-unit: ")
	checkSettled(t, b, configured, false)
}

// TestCanceled: containerd runs with the restored file in the end. On Windows, the next run
// restarts it.
func TestCanceled(t *testing.T) {
	t.Parallel()
	for nodeOS, want := range map[string]struct {
		restarts int
		message  string
	}{"linux": {1, "containerd runs with it"}, "windows": {0, "run the command again"}} {
		b := containerdtest.New(t, containerdtest.Config)
		must(t, b, "configure")
		_, count := restarts(t, b)
		c, err := containerd.ReadRecordedConfig(b.Config, b.State)
		testutil.NoError(t, err)
		c.Record.BeginRestart()
		testutil.NoError(t, c.Record.Save(b.State))
		o := configureOptions{shimDir: b.Root, restarter: restarter{
			Instance: containerd.Instance{OS: nodeOS, ConfigFile: b.Config, CRISocket: b.Socket}, stateDir: b.State, allowRestart: true,
			restartCommand: "echo restart >>" + filepath.Join(b.Root, "restarts"), restartTimeout: time.Minute,
		}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = o.restartOrUndo(ctx, io.Discard, plannedChange{RecordedConfig: c, new: containerdconfig.Result{Handlers: []string{"runc"}}})
		testutil.CheckError(t, nodeOS, err, want.message)
		if count() != want.restarts || b.Read(t) != containerdtest.Config {
			t.Errorf("%s: %d restarts; the file is\n%s", nodeOS, count(), b.Read(t))
		}
		if left := mustRead(t, b); left.Failure != nil || left.RestartDue != (want.restarts == 0) {
			t.Errorf("%s: %+v", nodeOS, left)
		}
		must(t, b, append([]string{"configure"}, b.Restart()...)...)
		checkLoaded(t, b, "in the end", true)
	}
}

type writerFunc func(text string)

func (w writerFunc) Write(text []byte) (int, error) { w(string(text)); return len(text), nil }

// TestRestartSpread: there is a wait before the first restart only, and what others write to
// the file meanwhile is kept.
func TestRestartSpread(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	for _, first := range []bool{true, false} {
		waits := false
		command := NewConfigureCommand()
		command.SetErr(writerFunc(func(text string) {
			if strings.Contains(text, "--restart-spread") {
				waits = true
				testutil.WriteFile(t, b.Config, containerdtest.Config+"oom_score = -999\n", 0o640)
			}
		}))
		command.SetArgs(flags(b, append([]string{"configure", "--restart-spread", "10ms"}, b.Restart()...)))
		if err := command.ExecuteContext(t.Context()); err != nil || waits != first {
			t.Errorf("waits: %t, %v", waits, err)
		}
	}
	if got := b.Read(t); !strings.Contains(got, "oom_score = -999") || !strings.Contains(got, b.Shim()) {
		t.Errorf("the configuration is\n%s", got)
	}
}

// TestConfigurationKeepsItsGroup: the file can have credentials.
func TestConfigurationKeepsItsGroup(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	if os.Chown(b.Config, 0, 23456) != nil {
		return // Only root can.
	}
	testutil.NoError(t, os.Chmod(b.Config, 0o640), os.Chown(b.Root, 0, 34567), os.Chmod(b.Root, 0o755|os.ModeSetgid))
	check := func(when string) {
		t.Helper()
		info, err := os.Stat(b.Config)
		if err != nil {
			t.Fatal(when, err)
		}
		if stat, _ := info.Sys().(*syscall.Stat_t); stat.Gid != 23456 || info.Mode() != 0o640 {
			t.Errorf("%s: the file has group %d and mode %v", when, stat.Gid, info.Mode())
		}
	}
	flags, _ := restarts(t, b)
	if _, _, err := run(t, b, append([]string{"configure"}, flags...)...); err == nil || b.Read(t) != containerdtest.Config {
		t.Errorf("the change was not undone: %v", err)
	}
	check("restored")
	must(t, b, "configure")
	check("configured")
	must(t, b, "unconfigure")
	check("unconfigured")
}
