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

// PodResourcesPods returns a function for [Config.Pods] that asks the kubelet's
// PodResources API on socket, on Linux
// /var/lib/kubelet/pod-resources/kubelet.sock. It takes at most two seconds.
//
// It tells which pods there are and not what they hold, because the API is
// silent about ordinary init containers, and the kubelet is not.
func PodResourcesPods(socket string) func(ctx context.Context) (map[string]bool, error) {
	return func(ctx context.Context) (map[string]bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		conn, err := dialUnix(socket, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResourcesBytes)))
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet on %s for its pods: %w", socket, err)
		}
		defer func() { _ = conn.Close() }()
		list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet on %s for its pods: %w", socket, err)
		}
		pods := make(map[string]bool, len(list.GetPodResources()))
		for _, pod := range list.GetPodResources() {
			pods[pod.GetNamespace()+"/"+pod.GetName()] = true
		}
		return pods, nil
	}
}
