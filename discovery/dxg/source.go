//go:build linux

// Package dxg finds the GPUs of a Linux VM with GPU paravirtualization (WSL 2, Hyper-V)
// by the requests of /dev/dxg, as Microsoft's header describes them. It needs neither
// cgo nor libdxcore.
//
// A query that the kernel or the host does not answer leaves its value empty. An adapter
// that answers with another error, such as EIO, is unhealthy and keeps what it answered
// last. One that never answered has no kind, so that it is not offered.
//
// # Identity
//
// A device's instance ID is the model, as in `PCI\VEN_10DE&DEV_2684&SUBSYS_16F110DE&REV_A1`,
// and the unit: the place on the host's PCI bus if the host reports it, and otherwise the
// LUID. In a VM, that is the LUID of the host's adapter, which changes when the host
// reboots or restarts the driver. After a reboot it may be another adapter's, so that IDs
// of equal GPUs can change places. No container survives that, the VM ends with its host,
// and an ID never names a GPU of another model. A record of an ID that no longer exists
// matches no GPU: its container is refused until the pod is replaced. While a program runs
// and the adapter is present, it keeps its ID.
//
// The location path is that of the virtual function in the VM. It is not part of the
// identity, because whether it survives a restart of the VM is the host's choice.
package dxg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
)

// DefaultDevice is the driver's device node, also in containers.
const DefaultDevice = "/dev/dxg"

// ErrNoDevice reports that the system has no driver of GPU paravirtualization.
var ErrNoDevice = errors.New("no GPU: " + DefaultDevice + " does not exist")

// Options configure [Open]. The zero value is for a real VM.
type Options struct {
	// Device is the path of the driver, by default [DefaultDevice]. If it is no device
	// node, as in tests, containers get [DefaultDevice].
	Device string
	// WSL is the directory of the user-mode drivers, by default /usr/lib/wsl, which
	// Microsoft's libdxcore.so requires. Sys is by default /sys.
	WSL, Sys string
	Log      logrus.FieldLogger
}

// Source lists the GPUs behind /dev/dxg. Create it with [Open].
type Source struct {
	options Options
	open    func(path string) (driver, error)
	timing  timing
	// reading is a mutex whose Lock can be canceled. It guards known.
	reading chan struct{}
	// known has the present adapters that answered.
	known map[discovery.LUID]knownAdapter

	mu    sync.Mutex
	state state
}

var _ discovery.Source = (*Source)(nil)

// knownAdapter is an adapter's answers without a failure, and its identity.
type knownAdapter struct {
	answers
	instanceID string
}

// state is the result of all reads so far.
type state struct {
	devices []discovery.Device
	// generation counts the changes of devices; 0 if there never was a list.
	generation int
	// err is the error of the last read.
	err error
}

// Open returns the source of the GPUs. It reads nothing yet.
func Open(o Options) *Source {
	o.Device = cmp.Or(o.Device, DefaultDevice)
	o.WSL, o.Sys = cmp.Or(o.WSL, "/usr/lib/wsl"), cmp.Or(o.Sys, "/sys")
	return &Source{
		options: o, open: openDevice, reading: make(chan struct{}, 1), known: map[discovery.LUID]knownAdapter{},
		timing: timing{debounce: 300 * time.Millisecond, settle: 2 * time.Second, poll: 30 * time.Second},
	}
}

// Devices implements [discovery.Source]. It reads everything at each call. If the
// adapters cannot be listed, those of the last good list are unhealthy.
func (s *Source) Devices(ctx context.Context) ([]discovery.Device, error) {
	st, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	if st.generation == 0 {
		return nil, st.err
	}
	return discovery.Static(st.devices).Devices(ctx)
}

// Find implements [discovery.Source].
func (s *Source) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	devices, err := s.Devices(ctx)
	return discovery.Select(devices, instanceIDs), err
}

// read reads the devices and returns the new state. Its error is that of ctx, which
// does not interrupt the read: the driver waits for the host.
func (s *Source) read(ctx context.Context) (state, error) {
	select {
	case s.reading <- struct{}{}:
	case <-ctx.Done():
		return state{}, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
	done := make(chan state, 1)
	go func() {
		defer func() { <-s.reading }()
		devices, err := s.list()
		done <- s.update(devices, err)
	}()
	select {
	case st := <-done:
		return st, nil
	case <-ctx.Done():
		return state{}, fmt.Errorf("find GPUs: %w", context.Cause(ctx))
	}
}

// update makes a list, or the error of one, the state.
func (s *Source) update(devices []discovery.Device, err error) state {
	s.mu.Lock()
	defer s.mu.Unlock()
	previous := s.state
	if s.state.err = err; err != nil {
		s.state.err = fmt.Errorf("find GPUs: %w", err)
		devices = slices.Clone(previous.devices)
		for i := range devices {
			devices[i].Health = discovery.Health{Reason: "the driver does not answer: " + errnoText(err)}
		}
	}
	if err == nil && previous.generation == 0 || !reflect.DeepEqual(previous.devices, devices) {
		s.state.devices = devices
		s.state.generation++
	}
	if s.options.Log != nil {
		s.logChange(previous)
	}
	return s.state
}

func (s *Source) logChange(previous state) {
	log := s.options.Log.WithField("device", s.options.Device)
	switch {
	case s.state.err != nil && (previous.err == nil || previous.err.Error() != s.state.err.Error()):
		log.WithError(s.state.err).Error("Cannot list the GPUs")
	case s.state.generation != previous.generation:
		for _, d := range s.state.devices {
			log.WithFields(logrus.Fields{"gpu": d.InstanceID, "kind": d.Kind(), "health": d.Health.String(), "notes": d.Notes}).Info("GPU " + d.Description)
		}
	}
}

// list reads all adapters.
func (s *Source) list() (devices []discovery.Device, err error) {
	d, err := s.open(s.options.Device)
	if errors.Is(err, fs.ErrNotExist) && s.options.Device == DefaultDevice {
		err = ErrNoDevice
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	adapters, err := enumerate(d)
	if err != nil {
		return nil, err
	}
	defer closeAll(d, adapters)
	var all []answers
	for _, adapter := range adapters {
		a, known := s.known[adapter.luid.number()]
		if known {
			// The rest changes with the LUID only, and the driver logs each refused query.
			a.failure = check(d, adapter)
		} else {
			a.answers = read(d, adapter)
		}
		all = append(all, a.answers)
	}
	return s.devices(all), nil
}

// devices turns the adapters' answers into devices, ordered by LUID: the host's
// order of appearance.
func (s *Source) devices(all []answers) []discovery.Device {
	slices.SortStableFunc(all, func(a, b answers) int { return cmp.Compare(a.luid, b.luid) })
	all = slices.CompactFunc(all, func(a, b answers) bool { return a.luid == b.luid })
	equal := map[string]int{} // adapters at the same place of a bus
	for _, a := range all {
		equal[a.model()+a.place()]++
	}
	pci, files, known := functions(s.options.Sys), openVM(s.options.WSL), map[discovery.LUID]knownAdapter{}
	devices := []discovery.Device{}
	for _, a := range all {
		d := a.device()
		unit := a.luid.String()
		if place := a.place(); place != "" && equal[a.model()+place] == 1 {
			unit = place
		}
		last, isKnown := s.known[a.luid]
		d.InstanceID = cmp.Or(last.instanceID, a.model()+`\`+unit)
		d.LocationPath = pci[a.luid].locationPath
		if pci[a.luid].computeOnly {
			d.SupportsDisplay = false
		}
		addFiles(&d, s.deviceNode(), files, a)
		if isKnown || a.failure == nil {
			a.failure = nil
			known[a.luid] = knownAdapter{a, d.InstanceID}
		}
		devices = append(devices, d)
	}
	s.known = known
	return devices
}

// deviceNode returns the path of the device node for containers.
func (s *Source) deviceNode() string {
	if isDevice(s.options.Device) {
		return s.options.Device
	}
	return DefaultDevice
}
