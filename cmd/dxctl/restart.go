package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/durable"
	"directx-nri/internal/service"
)

// pendingRestartName is the record, in the state directory, of a [pendingRestart].
const pendingRestartName = "restart-pending.json"

// pendingRestart is a change of containerd's configuration with a restart that is not
// finished. Whatever kills dxctl, another process can finish it: the next run, or the
// scheduled task that restarts containerd.
type pendingRestart struct {
	// Attempt identifies the change; see [attempt]. "" if a failure is not recorded.
	Attempt string `json:"attempt,omitempty"`
	// Written is the fingerprint of the new configuration file.
	Written string `json:"written"`
	// Handlers are those that must be loaded with Shim after the restart.
	Handlers []string `json:"handlers,omitempty"`
	Shim     string   `json:"shim,omitempty"`
	// Files are those before the change, the configuration file first.
	Files []savedFile `json:"files,omitempty"`
	// Services are those that ran and depend on containerd's.
	Services []string `json:"services,omitempty"`
	// Failed is why the files are restored; "" before.
	Failed string `json:"failed,omitempty"`
}

// savedFile is the content of a file.
type savedFile struct {
	Path   string      `json:"path"`
	Exists bool        `json:"exists"`
	Text   []byte      `json:"text,omitempty"`
	Perm   fs.FileMode `json:"perm"`
}

func saveFile(path string) (savedFile, error) {
	text, exists, err := readFile(path)
	if err != nil {
		return savedFile{}, err
	}
	perm := newFilePerm
	if info, err := os.Stat(path); err == nil {
		perm = info.Mode().Perm()
	}
	return savedFile{path, exists, text, perm}, nil
}

func (f savedFile) restore() error {
	if !f.Exists {
		return durable.Remove(f.Path)
	}
	return durable.Replace(f.Path, f.Text, f.Perm)
}

// fingerprint identifies the content of a file, and that it does not exist.
func fingerprint(text []byte, exists bool) string {
	if !exists {
		return "none"
	}
	return hash(text)
}

// newPending returns the record of a change of m to a new text.
func newPending(m *managedFile, text []byte, exists bool) (*pendingRestart, error) {
	p := &pendingRestart{Written: fingerprint(text, exists)}
	for _, path := range []string{m.path, m.journalPath(), m.backupPath()} {
		saved, err := saveFile(path)
		if err != nil {
			return nil, err
		}
		p.Files = append(p.Files, saved)
	}
	return p, nil
}

// ready returns an error unless containerd has loaded the change.
func (p *pendingRestart) ready(loaded []containerdconfig.Handler) error {
	for _, name := range p.Handlers {
		i := slices.IndexFunc(loaded, func(h containerdconfig.Handler) bool { return h.Name == name })
		if i < 0 {
			return fmt.Errorf("runtime handler %s is not loaded", name)
		}
		if loaded[i].RuntimePath != p.Shim {
			return fmt.Errorf("runtime handler %s is loaded with runtime_path %q", name, loaded[i].RuntimePath)
		}
	}
	return nil
}

// inPlace reports whether the configuration file has the change or, after a failure, may
// be restored already. It does neither if dxctl was killed before the file was written, or
// if others replaced the file since.
func (p *pendingRestart) inPlace() (bool, error) {
	if len(p.Files) == 0 {
		return true, nil
	}
	text, exists, err := readFile(p.Files[0].Path)
	found := fingerprint(text, exists)
	return found == p.Written || p.Failed != "" && found == fingerprint(p.Files[0].Text, p.Files[0].Exists), err
}

func (t *target) pendingPath() string { return filepath.Join(t.stateDir, pendingRestartName) }

// save writes the record.
func (t *target) save(p *pendingRestart) error {
	text, err := json.MarshalIndent(p, "", "  ")
	if err == nil {
		err = durable.MakePrivate(t.stateDir)
	}
	if err == nil {
		err = durable.Replace(t.pendingPath(), append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record the restart: %w", err)
	}
	t.at("recorded")
	return nil
}

// begin records p before the change.
func (t *target) begin(p *pendingRestart) (err error) {
	if t.restartBy == "" && t.restartMode != restartBySignal {
		if p.Services, err = service.Dependents(t.serviceName); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
	}
	return t.save(p)
}

// readPending returns the record, or nil if there is none.
func (t *target) readPending() (*pendingRestart, error) {
	text, exists, err := readFile(t.pendingPath())
	if err != nil || !exists {
		return nil, err
	}
	p := new(pendingRestart)
	// Its content becomes the configuration of a privileged program.
	if err = durable.CheckFile(t.pendingPath()); err == nil {
		err = json.Unmarshal(text, p)
	}
	if err != nil {
		return nil, fmt.Errorf("read the unfinished restart %s: %w", t.pendingPath(), err)
	}
	return p, nil
}

// forgetPending removes the record.
func (t *target) forgetPending() error {
	err := durable.Remove(t.pendingPath())
	_ = os.Remove(t.stateDir) // Fails unless it is empty.
	return err
}

// at reports a step to a test.
func (t *target) at(step string) {
	if t.step != nil {
		t.step(step)
	}
}

// recover finishes a restart that an earlier run of dxctl left unfinished.
func (t *target) recover(ctx context.Context, out io.Writer) error {
	if err := t.waitForTask(ctx); err != nil {
		return err
	}
	p, err := t.readPending()
	if p == nil || err != nil {
		return err
	}
	inPlace, err := p.inPlace()
	if err != nil {
		return err
	}
	if !inPlace || p.Failed == "" && len(p.Handlers) > 0 && t.hasLoaded(ctx, t.restartLimit, p.ready) {
		return t.forgetPending()
	}
	if !t.restart {
		return fmt.Errorf("an earlier command did not finish its restart of containerd: add --restart, or restart containerd and remove %s", t.pendingPath())
	}
	if err := t.checkRestart(ctx); err != nil {
		return fmt.Errorf("an earlier command did not finish its restart of containerd: %w", err)
	}
	fmt.Fprintln(out, "finishing an earlier restart of containerd")
	return t.restartOrRestore(ctx, out, p)
}

// hasLoaded reports whether the running containerd is known to have loaded what ready
// accepts.
func (t *target) hasLoaded(ctx context.Context, limit time.Duration, ready func([]containerdconfig.Handler) error) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	handlers, err := t.loaded(ctx)
	return err == nil && ready(handlers) == nil
}

// restartOrRestore restarts containerd for p, whose record is written. If containerd does
// not come back, it restores the files and restarts again; the error describes both.
func (t *target) restartOrRestore(ctx context.Context, out io.Writer, p *pendingRestart) error {
	if t.restartMode == restartByTask {
		return t.restartByTask(ctx, out, p)
	}
	return t.finish(ctx, out, p)
}

// finish is restartOrRestore by this process. It is killed at any moment: each step is
// recorded before, and can be repeated.
func (t *target) finish(ctx context.Context, out io.Writer, p *pendingRestart) error {
	err, canceled := errors.New(p.Failed), false
	if p.Failed == "" {
		if err = t.restartAndCheck(ctx, p.Services, p.ready); err == nil {
			fmt.Fprintln(out, "restarted containerd")
			return t.forgetPending()
		}
		p.Failed = err.Error()
		if canceled = ctx.Err() != nil; canceled {
			p.Attempt = "" // The cause is not the file.
		}
		if saveErr := t.save(p); saveErr != nil {
			err = fmt.Errorf("%w; %w", err, saveErr)
		}
	}
	// Even after a signal: a node without containerd is worse.
	ctx = context.WithoutCancel(ctx)
	if restoreErr := t.restore(p); restoreErr != nil {
		return fmt.Errorf("%w; restore %s: %w", err, t.config, restoreErr)
	}
	// On Windows, a pod's process has 5 s to end. Another restart could be killed when
	// the kubelet is stopped, and nothing would run dxctl again: the next run does it.
	// https://github.com/microsoft/hcsshim/blob/v0.14.1/internal/jobcontainers/jobcontainer.go
	if canceled && t.os == "windows" && t.hasLoaded(ctx, time.Second, anyHandlers) {
		return fmt.Errorf("%w; %s was restored; run the command again to restart containerd", err, t.config)
	}
	err = t.restartRestored(ctx, p, err)
	if p.Attempt != "" {
		err = attempt{t.stateDir, p.Attempt}.failed(time.Now(), err)
		t.at("remembered")
	}
	if forgetErr := t.forgetPending(); forgetErr != nil {
		return fmt.Errorf("%w; %w", err, forgetErr)
	}
	return err
}

func (t *target) restore(p *pendingRestart) error {
	for _, file := range p.Files {
		if err := file.restore(); err != nil {
			return err
		}
		t.at("restored " + filepath.Base(file.Path))
	}
	return nil
}

// restartRestored restarts containerd with the restored files. It returns cause with what
// came of it.
func (t *target) restartRestored(ctx context.Context, p *pendingRestart, cause error) error {
	if len(p.Files) == 0 {
		return cause
	}
	if err := t.restartAndCheck(ctx, p.Services, anyHandlers); err != nil {
		return fmt.Errorf("%w; %s was restored; %w", cause, t.config, err)
	}
	return fmt.Errorf("%w; %s was restored, and containerd runs with it", cause, t.config)
}

// anyHandlers accepts what containerd has loaded.
func anyHandlers([]containerdconfig.Handler) error { return nil }

// service returns containerd's service. The restart starts also those of dependents that
// an earlier one left stopped.
func (t *target) service(dependents ...string) service.Service {
	switch {
	case t.restartBy != "":
		return service.Command(t.restartBy)
	case t.restartMode == restartBySignal:
		return service.Behind(t.criSocket, containerdProgram)
	}
	return service.Named(t.serviceName, dependents...)
}

// checkRestart returns an error if containerd cannot be restarted.
func (t *target) checkRestart(ctx context.Context) error {
	if t.restartMode == restartByTask {
		_, err := service.Dependents(t.serviceName)
		return err
	}
	return t.service().Check(ctx)
}

// restartAndCheck restarts containerd and waits until ready accepts its handlers.
func (t *target) restartAndCheck(ctx context.Context, dependents []string, ready func([]containerdconfig.Handler) error) error {
	ctx, cancel := context.WithTimeout(ctx, t.restartLimit)
	defer cancel()
	t.at("restart")
	if err := t.service(dependents...).Restart(ctx); err != nil {
		return err
	}
	t.at("restarted")
	for {
		handlers, err := t.loaded(ctx)
		if err == nil {
			err = ready(handlers)
		}
		if err == nil {
			t.at("loaded")
			return nil
		}
		if status.Code(err) == codes.Unimplemented { // That will not change.
			return fmt.Errorf("containerd restarted without its CRI plugin: %w", err)
		}
		select {
		case <-ctx.Done():
			hint := ""
			if t.restartBy == "" && t.restartMode == restartBySignal && status.Code(err) == codes.Unavailable {
				hint = "; if no supervisor starts containerd again, start it, and do not use --restart-mode " + restartBySignal
			}
			return fmt.Errorf("containerd was restarted by %s and has not loaded its configuration after %v: %w%s", t.service(), t.restartLimit, err, hint)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
