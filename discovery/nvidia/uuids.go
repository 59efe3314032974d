// Package nvidia adds the UUIDs of NVIDIA's GPUs to lists of devices, as nvidia-smi reports them.
package nvidia

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/pci"
)

const (
	// queryTimeout is the time limit of nvidia-smi. It takes seconds when the system starts, and the
	// driver can hang. The kubelet waits for it before the first list.
	queryTimeout = 2 * time.Second
	// retryInterval is the time after which an unknown UUID is queried again.
	retryInterval = time.Minute
)

// UUIDs has the UUIDs of NVIDIA's GPUs. Create it with [NewUUIDs].
type UUIDs struct {
	// query returns UUIDs by PCI address, and an error if some are missing.
	query func(ctx context.Context, gpus []discovery.Device) (map[string]string, error)
	// uuids are the results of all queries by [key], with "" for unknown UUIDs.
	uuids   map[string]string
	err     error // of the last query
	retryAt time.Time
	running atomic.Bool // a query
}

// NewUUIDs returns UUIDs that are not known yet. hostRoot is where the node's root directory is
// mounted, for a program in a container on Linux. Windows ignores it.
func NewUUIDs(hostRoot string) *UUIDs {
	return &UUIDs{uuids: map[string]string{}, query: func(ctx context.Context, gpus []discovery.Device) (map[string]string, error) {
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		command, err := newCommand(ctx, hostRoot, gpus)
		if err != nil {
			return nil, err
		}
		return run(ctx, command)
	}}
}

// key identifies a GPU until its driver restarts, which changes the LUID.
func key(d discovery.Device) string { return d.InstanceID + d.LUID.String() }

// Add adds the UUIDs of NVIDIA's GPUs to devices, a list of all devices, if there are several: programs find
// the only one without. It returns an error only if ctx ends. It must not be called concurrently.
//
// nvidia-smi runs for GPUs that are new, for GPUs whose driver has restarted, and again after a
// minute for GPUs whose UUID it did not report.
func (u *UUIDs) Add(ctx context.Context, devices []discovery.Device) error {
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d discovery.Device) bool { return d.VendorID != pci.VendorNVIDIA })
	if len(gpus) < 2 {
		return nil
	}
	if slices.ContainsFunc(gpus, u.isDue) {
		byAddress, err := u.queryInTime(ctx, gpus)
		u.err, u.retryAt = err, time.Now().Add(retryInterval)
		for i, d := range gpus {
			address := pciAddress(d)
			isOther := func(other discovery.Device) bool { return pciAddress(other) == address }
			if slices.ContainsFunc(gpus[:i], isOther) || slices.ContainsFunc(gpus[i+1:], isOther) {
				address = ""
			}
			u.uuids[key(d)] = cmp.Or(byAddress[address], u.uuids[key(d)])
		}
	}
	for i, d := range devices {
		uuid, queried := u.uuids[key(d)]
		devices[i].UUID = uuid
		if queried && uuid == "" && u.err != nil {
			devices[i].Notes = append(slices.Clip(d.Notes), fmt.Sprintf("its UUID is unknown: %q", errlog.Text(u.err)))
		}
	}
	return context.Cause(ctx)
}

// queryInTime is query for one call at a time. nvidia-smi that hangs in the driver cannot be killed.
func (u *UUIDs) queryInTime(ctx context.Context, gpus []discovery.Device) (map[string]string, error) {
	if !u.running.CompareAndSwap(false, true) {
		return nil, errors.New("an earlier nvidia-smi has not ended")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*queryTimeout)
	defer cancel()
	return bounded.Call(ctx, func(ctx context.Context) (map[string]string, error) {
		defer u.running.Store(false)
		return u.query(ctx, gpus)
	})
}

// DropOnly removes the UUID of devices' only NVIDIA GPU, as [UUIDs.Add] does not read it. Not all programs can
// parse UUIDs in CUDA_VISIBLE_DEVICES.
func DropOnly(devices []discovery.Device) {
	isNVIDIA := func(d discovery.Device) bool { return d.VendorID == pci.VendorNVIDIA }
	if i := slices.IndexFunc(devices, isNVIDIA); i >= 0 && !slices.ContainsFunc(devices[i+1:], isNVIDIA) {
		devices[i].UUID = ""
	}
}

// isDue reports whether the UUID of d must be queried.
func (u *UUIDs) isDue(d discovery.Device) bool {
	uuid, queried := u.uuids[key(d)]
	return d.Health.OK() && uuid == "" && (!queried || !time.Now().Before(u.retryAt))
}

// pciAddress returns the PCI address of a GPU in the notation of nvidia-smi, such as
// 00000000:1B:00.0, and "" if it is unknown.
func pciAddress(d discovery.Device) string {
	segment, bus, device, function, known := d.PCIAddress()
	if !known {
		return ""
	}
	return fmt.Sprintf("%08X:%02X:%02X.%X", segment, bus, device, function)
}

// run runs nvidia-smi, and returns the UUIDs that it reports, by PCI address. nvidia-smi comes with the driver,
// and a driver that hangs or crashes does not affect this process. If one GPU fails, so does nvidia-smi, but it
// can report the others.
// https://docs.nvidia.com/deploy/nvidia-smi/index.html
func run(ctx context.Context, command *exec.Cmd) (map[string]string, error) {
	command.Args = append(command.Args, "--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
	command.WaitDelay = time.Second
	output, err := command.Output()
	if err != nil {
		err = fmt.Errorf("query %s: %w", command.Path, errors.Join(context.Cause(ctx), err))
	}
	uuids := map[string]string{}
	for line := range bytes.Lines(output) {
		address, uuid, _ := strings.Cut(strings.TrimSpace(string(line)), ", ")
		if strings.HasPrefix(uuid, "GPU-") {
			uuids[strings.ToUpper(address)] = uuid
		}
	}
	return uuids, err
}
