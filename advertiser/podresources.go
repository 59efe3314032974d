package advertiser

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxPodResourcesBytes is what the kubelet's own client takes of the list of
// all pods' resources.
const maxPodResourcesBytes = 16 << 20

// PodResourcesHolders returns a function for [Config.Holders] that asks the
// kubelet's PodResources API on socket, on Linux
// /var/lib/kubelet/pod-resources/kubelet.sock. It takes at most two seconds.
//
// The API does not list ordinary init containers: a GPU that only an init
// container holds counts as held by nobody here.
func PodResourcesHolders(socket string) func(ctx context.Context) (map[string]bool, error) {
	return func(ctx context.Context) (map[string]bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		conn, err := dialUnix(socket, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResourcesBytes)))
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet on %s for the replicas held: %w", socket, err)
		}
		defer func() { _ = conn.Close() }()
		list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet on %s for the replicas held: %w", socket, err)
		}
		holders := map[string]bool{}
		for _, pod := range list.GetPodResources() {
			for _, container := range pod.GetContainers() {
				for _, devices := range container.GetDevices() {
					if !ours(devices.GetResourceName()) {
						continue
					}
					for _, id := range devices.GetDeviceIds() {
						holders[id] = true
					}
				}
			}
		}
		return holders, nil
	}
}
