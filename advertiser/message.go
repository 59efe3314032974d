package advertiser

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxMessageBytes is the longest message that the kubelet takes from a device
// plugin: gRPC's default, which it does not raise (plugin/v1beta1/client.go in
// pkg/kubelet/cm/devicemanager, v1.34).
const maxMessageBytes = 4 << 20

// devicesField is the number of ListAndWatchResponse's only field.
const devicesField = 1

// response returns p as the kubelet is told of it.
//
// The devices are encoded one by one and travel as the message's unknown
// fields, which gRPC sends as they are. 16,384 devices as structures would
// take several times the memory for the moment of sending, and such moments
// decide how much memory the process keeps.
func (p *pool) response() (*v1beta1.ListAndWatchResponse, error) {
	size, err := p.size()
	if err != nil {
		return nil, err
	}
	message := make([]byte, 0, size)
	for _, g := range p.gpus {
		device := &v1beta1.Device{Topology: g.topology()}
		for number := range g.listed {
			if message, err = p.appendDevice(message, device, g, number); err != nil {
				return nil, err
			}
		}
	}
	response := &v1beta1.ListAndWatchResponse{}
	response.ProtoReflect().SetUnknown(message)
	return response, nil
}

// size returns how many bytes the message for p has at most, or an error when
// the kubelet would not take it.
func (p *pool) size() (int, error) {
	size := 0
	for i, g := range p.gpus {
		// No number has more digits than the last.
		longest, err := p.appendDevice(nil, &v1beta1.Device{Topology: g.topology()}, g, g.listed-1)
		if err != nil {
			return 0, err
		}
		// Unhealthy is the longer word.
		size += g.listed * (len(longest) + len(v1beta1.Unhealthy) - len(v1beta1.Healthy))
		if size > maxMessageBytes {
			return 0, fmt.Errorf("offer %d GPUs as up to %d replicas of %s each: the list is longer than the %d bytes that the kubelet takes, lower replicas of its rules in the configuration, or lower --replicas to %d",
				len(p.gpus), p.mostReplicas(), p.resource, maxMessageBytes, max(1, p.mostReplicas()*i/len(p.gpus)))
		}
	}
	return size, nil
}

// mostReplicas returns the largest number of replicas that a GPU of p has.
func (p *pool) mostReplicas() int {
	most := 0
	for _, g := range p.gpus {
		most = max(most, g.replicas)
	}
	return most
}

// appendDevice appends one replica of g to message, as an element of
// ListAndWatchResponse. It uses device for it, which has g's topology.
func (p *pool) appendDevice(message []byte, device *v1beta1.Device, g gpu, number int) ([]byte, error) {
	device.ID = replicaID(g.instanceID, number)
	device.Health = v1beta1.Unhealthy
	if number < g.healthy() {
		device.Health = v1beta1.Healthy
	}
	message = protowire.AppendTag(message, devicesField, protowire.BytesType)
	message = protowire.AppendVarint(message, uint64(proto.Size(device)))
	message, err := proto.MarshalOptions{}.MarshalAppend(message, device)
	if err != nil {
		return nil, fmt.Errorf("tell the kubelet of GPU %s: %w", g.name, err)
	}
	return message, nil
}

// topology returns g's NUMA node as the kubelet wants it, nil when it is not
// known.
func (g gpu) topology() *v1beta1.TopologyInfo {
	if g.numaNode == nil {
		return nil
	}
	return &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(*g.numaNode)}}}
}
