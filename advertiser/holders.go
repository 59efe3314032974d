package advertiser

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"directx-nri/internal/allocation"
	"directx-nri/internal/durable"
)

// records says, for the length of one look, which GPUs are held as what. It
// reads only what it is asked for.
type records struct {
	recorder Recorder
	// over tells whether nothing stands behind a live record any more.
	over func(allocation.LiveRecord) bool
	// kept has, by folded instance ID, the resource in whose pool a GPU stays for
	// now whatever the rules say.
	kept map[string]string

	read bool
	live []allocation.LiveRecord
	err  error
	// by has the resources as which a GPU is held, by its folded instance ID.
	by map[string][]string
}

// all returns the live records, none when they cannot be read.
func (r *records) all() []allocation.LiveRecord {
	if r.read {
		return r.live
	}
	r.read = true
	r.live, r.err = r.recorder.Live()
	r.by = map[string][]string{}
	for _, record := range r.live {
		if r.over(record) {
			continue
		}
		for _, replica := range record.Replicas {
			key := foldID(replica.InstanceID)
			if !slices.Contains(r.by[key], record.Resource) {
				r.by[key] = append(r.by[key], record.Resource)
			}
		}
	}
	return r.live
}

// heldAs returns the name of another resource as which a GPU may still be held,
// "" when there is none. known is what resource's pool has.
//
// A GPU that was clear once stays so: while a pool has it, no other resource
// gets a new record of it.
func (r *records) heldAs(instanceID, resource string, known map[string]gpu) string {
	key := foldID(instanceID)
	if name := r.kept[key]; name != "" && name != resource {
		return name
	}
	if g, ok := known[key]; ok && !g.missing() && g.heldAs == "" {
		return ""
	}
	r.all()
	if r.err != nil {
		return "another resource, for all that can be told"
	}
	for _, name := range r.by[key] {
		if name != resource {
			return name
		}
	}
	return ""
}

// over returns what tells whether nothing stands behind a live record any more:
// its pod is gone, or the kubelet's checkpoint has none of its replicas.
func (a *Advertiser) over() func(allocation.LiveRecord) bool {
	books := sync.OnceValue(func() books {
		b, err := a.books()
		if err != nil {
			a.config.Log.WithError(err).Debug("what the kubelet has allocated cannot be read, so all replicas that are recorded count as held")
		}
		return b
	})
	now := a.now()
	return func(record allocation.LiveRecord) bool {
		switch {
		case record.Holder != nil && a.gone[record.Holder.PodUID]:
			return true
		// The kubelet writes its checkpoint soon after Allocate has answered.
		case now.Sub(record.CreatedAt) < a.timing.patience, books() == nil:
			return false
		}
		return !slices.ContainsFunc(record.Replicas, func(r allocation.Replica) bool { return books()[record.Resource][r.ID] })
	}
}

// heldNames returns the resources that something is held as, each once.
func (a *Advertiser) heldNames(live []allocation.LiveRecord) []string {
	over := a.over()
	var names []string
	for _, record := range live {
		if !slices.Contains(names, record.Resource) && !over(record) {
			names = append(names, record.Resource)
		}
	}
	return names
}

// kubeletCheckpoint is the kubelet's file, in its folder for device plugins, of
// what it has allocated (pkg/kubelet/cm/devicemanager/checkpoint, v1.34). It is
// there before the kubelet has heard of any pod after a restart, and also has
// what init containers hold, which the PodResources API does not tell.
const kubeletCheckpoint = "kubelet_internal_checkpoint"

// maxCheckpoint in bytes is far above what a kubelet writes: some hundred bytes
// for each container, and the IDs of all devices.
const maxCheckpoint = 64 << 20

// books are the replica IDs that the kubelet has allocated, by resource; nil when
// they are not known.
type books map[string]map[string]bool

// readBooks reads the kubelet's checkpoint. The file is the kubelet's own affair
// and may have another form one day: then nothing is known.
func readBooks(path string) (books, error) {
	data, err := readCheckpoint(path)
	if err != nil {
		return nil, err
	}
	b, err := parseBooks(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, nil
}

// readCheckpoint reads the file in a way that does not keep the kubelet from
// replacing it meanwhile: on Windows an admission would fail by that.
func readCheckpoint(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read %s: it is not a regular file", path)
	case info.Size() > maxCheckpoint:
		return nil, fmt.Errorf("read %s: it is larger than %d MiB", path, maxCheckpoint>>20)
	}
	return durable.Read(path, maxCheckpoint)
}

func parseBooks(data []byte) (books, error) {
	var file struct{ Data map[string]json.RawMessage }
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	list, ok := file.Data["PodDeviceEntries"]
	if _, registered := file.Data["RegisteredDevices"]; !ok || !registered {
		return nil, errors.New("it has no list of what pods have")
	}
	var entries []struct {
		ResourceName string
		// DeviceIDs are by NUMA node.
		DeviceIDs map[string][]string
	}
	if err := json.Unmarshal(list, &entries); err != nil {
		return nil, err
	}
	b := books{}
	for _, entry := range entries {
		if entry.ResourceName == "" || len(entry.DeviceIDs) == 0 {
			return nil, errors.New("an entry names no resource or no device")
		}
		if b[entry.ResourceName] == nil {
			b[entry.ResourceName] = map[string]bool{}
		}
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				b[entry.ResourceName][id] = true
			}
		}
	}
	return b, nil
}
