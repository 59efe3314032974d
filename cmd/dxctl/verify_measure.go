package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
	"github.com/directx-nri/directx-nri/ocispec/runflags"
)

// measurement starts containers, one after the other, and completes the result.
type measurement struct {
	client  *ctr
	out     io.Writer
	nodeOS  string
	devices []discovery.Device
	// withFiles are the edits for a container with driverFiles: mount, and withoutFiles those with
	// driverFiles: none.
	withFiles, withoutFiles ocispec.Edits
	// shimFlags request the GPUs from the runtime shim, nil without the shim.
	shimFlags []string
	// err is why the result is unknown. After an error, no container is started.
	err    error
	result verifyResult
}

func (m *measurement) buildEdits(p policy.Resolved, mode policy.DriverFiles) (ocispec.Edits, error) {
	p.DriverFiles = mode
	edits, _, err := gpuedits.Build(m.nodeOS, m.devices, nil, hostfiles.Root(""), p)
	return edits, err
}

// run starts the containers. An error means that the result is unknown.
func (m *measurement) run(ctx context.Context) error {
	r := &m.result
	if plainRefusal := m.start(ctx, "without a GPU", ocispec.Edits{}); plainRefusal != "" {
		return fmt.Errorf("a container without a GPU does not start, so GPUs cannot be tested: %s", plainRefusal)
	}
	interlockRefusal := m.start(ctx, "with the interlock, which must be refused", interlockEdits(m.nodeOS))
	startWith := func(files []specs.Mount) (refusal string) {
		edits := m.withFiles
		edits.Mounts = files
		return m.start(ctx, fmt.Sprintf("with GPUs and %d of %d driver files", len(files), len(m.withFiles.Mounts)), edits)
	}
	gpuRefusal := startWith(nil)
	if gpuRefusal == "" {
		refused, err := findRefused(m.withFiles.Mounts, startWith)
		r.Refused = refused
		m.err = cmp.Or(m.err, err)
	}
	configuredRefusal := m.startConfigured(ctx)
	switch {
	case m.err != nil:
		r.Refused = nil
		return m.err
	case interlockRefusal == "":
		r.Reason = "a container starts in spite of the interlock: this node must not offer GPUs"
	case gpuRefusal != "":
		r.Reason = "containers with GPUs do not start, even without driver files: " + gpuRefusal
	case configuredRefusal != "":
		r.Reason = "containers with GPUs do not start as configured: " + configuredRefusal
	default:
		r.Works, r.Reason = true, "containers with GPUs start as configured"
		if r.DriverFiles == policy.FilesNone && len(r.Refused) == 0 {
			r.Reason += ", and with driverFiles: mount"
		}
	}
	if m.nodeOS == "windows" { // Linux has no such settings.
		r.Settings = recommendedSettings(r.Refused, m.withoutFiles.Mounts, m.devices)
	}
	return nil
}

// interlockEdits returns the edits that the kubelet makes for an allocation.
func interlockEdits(nodeOS string) ocispec.Edits {
	if nodeOS == "windows" {
		return ocispec.Edits{WindowsDevices: []specs.WindowsDevice{
			{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType},
		}}
	}
	return ocispec.Edits{Mounts: []specs.Mount{ocispec.ReadOnlyMount(nodeOS, allocation.InterlockSource, allocation.InterlockMount)}}
}

// startConfigured starts a container with the GPUs as they are configured on the node.
func (m *measurement) startConfigured(ctx context.Context) (refusal string) {
	const what = "as configured"
	switch {
	case m.shimFlags != nil:
		return m.startWithFlags(ctx, what, m.shimFlags)
	case m.result.DriverFiles == policy.FilesNone:
		return m.start(ctx, what, m.withoutFiles)
	}
	return m.start(ctx, what, m.withFiles)
}

// start starts a container with edits. It requests no GPU from the runtime shim.
func (m *measurement) start(ctx context.Context, what string, edits ocispec.Edits) (refusal string) {
	edits.Env = []string{decision.VisibleVariable + "=none"}
	flags, err := runflags.Flags(runflags.Ctr, m.nodeOS, edits, hostfiles.Root("").Resolve)
	m.err = cmp.Or(m.err, err)
	return m.startWithFlags(ctx, what, flags)
}

// startWithFlags starts a container with flags of ctr, and prints the result. It tries twice, because
// the first start after a boot can fail. refusal is why the container does not start, "" if it starts
// or after an error, which is in m.err.
func (m *measurement) startWithFlags(ctx context.Context, what string, flags []string) (refusal string) {
	if m.err != nil {
		return ""
	}
	for range 2 {
		if refusal, m.err = m.client.start(ctx, flags); m.err != nil {
			return ""
		}
		if refusal == "" {
			break
		}
	}
	line := "starts   " + what
	if refusal != "" {
		line = "refused  " + what + ": " + errlog.OneLine(refusal)
	}
	fmt.Fprintln(m.out, line)
	m.result.Containers = append(m.result.Containers, line)
	return refusal
}

// findRefused returns the files with which a container does not start. A container starts with all
// other files together: if it no longer does, findRefused returns an error. start returns why a
// container with files does not start, "" if it starts.
//
// If a container with a list of files does not start, findRefused tries each half of the list
// together with the files that were accepted before. Of files that are refused only together, it
// returns the last one.
func findRefused(files []specs.Mount, start func(files []specs.Mount) (refusal string)) (refused []specs.Mount, err error) {
	var accepted []specs.Mount
	for pending := [][]specs.Mount{files}; len(pending) > 0 && len(files) > 0; {
		list, half := pending[0], len(pending[0])/2
		switch {
		case start(slices.Concat(accepted, list)) == "":
			accepted, pending = append(accepted, list...), pending[1:]
		case half > 0:
			pending = slices.Replace(pending, 0, 1, list[:half], list[half:])
		default:
			refused, pending = append(refused, list...), pending[1:]
		}
	}
	if len(refused) > 0 {
		if refusal := start(accepted); refusal != "" {
			err = fmt.Errorf("containers that started before do not start anymore, so the result means nothing: %s", refusal)
		}
	}
	return refused, err
}

// recommendedSettings returns settings with which containers do not get the refused files:
// driverFiles: none, if its mounts are not refused, and driverFiles: mount without the refused files.
func recommendedSettings(refused, none []specs.Mount, devices []discovery.Device) (list []string) {
	if len(refused) == 0 {
		return nil
	}
	if !slices.ContainsFunc(none, func(m specs.Mount) bool {
		return slices.ContainsFunc(refused, func(r specs.Mount) bool { return r.Destination == m.Destination })
	}) {
		list = append(list, "driverFiles: none\n")
	}
	remove := map[string]map[string][]string{}
	for _, m := range refused {
		i := slices.IndexFunc(devices, func(d discovery.Device) bool {
			return d.VendorID != 0 && d.DriverStorePath != "" && winpath.EqualOrBelow(d.DriverStorePath, m.Source)
		})
		if i < 0 {
			return list // The configuration cannot name the file.
		}
		path := winpath.Elements(m.Source)[len(winpath.Elements(devices[i].DriverStorePath)):]
		vendor := devices[i].VendorID.String()
		remove[vendor] = map[string][]string{"remove": append(remove[vendor]["remove"], strings.Join(path, "/"))}
	}
	if text, err := yaml.Marshal(map[string]any{"driverFiles": policy.FilesMount, "runtimeFiles": remove}); err == nil {
		list = append(list, string(text))
	}
	return list
}
