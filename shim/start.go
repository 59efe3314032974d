package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/hostfiles"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
)

// specName is the file of a bundle with the OCI runtime spec.
const specName = "config.json"

// prepare edits the bundle's config.json if the container requests a GPU. A panic
// refuses the container.
func (s *shim) prepare() (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log().WithField("stack", string(debug.Stack())).Error(r)
			err = s.container.Refuse(fmt.Errorf("%w: %v", decision.ErrInternal, r))
		}
	}()
	path := filepath.Join(s.bundle, specName)
	s.config, err = os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // The real shim reports it.
	case err != nil:
		return s.container.Refuse(err)
	case !mayRequestGPU(s.config):
		return nil
	}
	spec, err := s.parse(s.config)
	if err != nil {
		return s.container.Refuse(fmt.Errorf("%s: %w; whether the container requests a GPU is unknown", specName, err))
	}
	container, ok := Describe(spec.Facts, s.container.ID)
	if !ok {
		return nil
	}
	request, ok := decision.ReadRequest(container)
	if !ok {
		return nil
	}
	s.container = container
	edits, ok, err := s.decide(request)
	if err != nil || !ok {
		return err
	}
	if err := edit(path, spec, edits); err != nil {
		return s.container.Refuse(err)
	}
	return nil
}

// decide returns the edits of the container that makes the request; see
// [decision.Decider.Decide].
func (s *shim) decide(request decision.Request) (edits ocispec.Edits, ok bool, err error) {
	p, err := policy.Read(s.stateDir)
	if err != nil {
		return ocispec.Edits{}, false, s.container.Refuse(decision.WithReason(decision.ReasonConfig, err))
	}
	s.policy = &p
	decider, err := decision.NewDecider(s.stateDir, p, s.container.OS, files(s.container.OS), s.log())
	switch {
	case err == nil:
		return decider.Decide(context.Background(), request)
	case request.IgnoredBy(p):
		return ocispec.Edits{}, false, nil
	default:
		return ocispec.Edits{}, false, s.container.Refuse(err)
	}
}

// files are the node's files. A container of another operating system, as in
// 'make demo', has files of a node that is not this machine.
func files(os ocispec.OS) decision.Files {
	if string(os) != runtime.GOOS {
		return hostfiles.Assumed{}
	}
	return hostfiles.Root(root)
}

// edit makes edits of the spec, which was read from path.
func edit(path string, spec ocispec.Spec, edits ocispec.Edits) error {
	edited, changed, err := spec.Apply(edits)
	if err != nil {
		return fmt.Errorf("%s: %w", specName, err)
	}
	if !changed {
		return nil
	}
	return replace(path, edited)
}

// replace replaces the file at path with data in one step and keeps its mode and
// owner. It does not sync: no container survives what a sync protects from.
func replace(path string, data []byte) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("edit %s: %w", path, err)
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".directx-nri")
	defer func() {
		if err != nil {
			_ = os.Remove(temp) // containerd removes the bundle of a failed start.
			err = fmt.Errorf("edit %s: %w", path, err)
		}
	}()
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(info.Mode().Perm()) // The umask may have removed bits.
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := keepOwner(temp, info); err != nil {
		return err
	}
	return durable.Rename(temp, path)
}
