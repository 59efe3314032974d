package advertiser

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"directx-nri/internal/allocation"
)

// Inject returns the answer to the kubelet that gives one container GPUs of a
// resource, for nodes where nobody but the kubelet does. The GPUs are named by
// instance ID, each once. Of an error that matches [ErrNotInjectable] the request
// is to blame, of others this node.
//
// The kubelet keeps the answer and uses it at each start of the container. Of
// several resources of one container it merges the answers, by ContainerPath of
// devices and of mounts and by the names of variables; where two clash, it drops
// one of them, and nobody can say which (deviceRunContainerOptions in
// pkg/kubelet/cm/devicemanager, v1.34, goes through a map).
type Inject func(ctx context.Context, resource string, instanceIDs []string) (*v1beta1.ContainerAllocateResponse, error)

// ErrNotInjectable tells a request that cannot be met by an answer to the
// kubelet.
var ErrNotInjectable = errors.New("the kubelet cannot pass it on")

// injected returns the answers for containers that were promised replicas of
// resource.
func (s *service) injected(ctx context.Context, resource string, containers [][]allocation.Replica) ([]*v1beta1.ContainerAllocateResponse, error) {
	answers := make([]*v1beta1.ContainerAllocateResponse, 0, len(containers))
	for _, replicas := range containers {
		answer, err := s.inject(ctx, resource, instanceIDs(replicas))
		if err != nil {
			return nil, fmt.Errorf("give a container %s: %w", resource, err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// instanceIDs returns the GPUs of replicas, each once.
func instanceIDs(replicas []allocation.Replica) []string {
	var ids []string
	for _, r := range replicas {
		if !slices.Contains(ids, r.InstanceID) {
			ids = append(ids, r.InstanceID)
		}
	}
	return ids
}

// answerWithToken returns the answer that gives a container the token by which its
// GPUs are looked up when it is created, and an interlock that keeps it from being
// started by a runtime that does not look them up. windows is for containers on
// Windows nodes.
//
// containerd takes Windows devices without a container path and permissions only
// (WithDevices in pkg/cri/opts/spec_windows_opts.go, v1.7). Of several resources'
// interlocks the kubelet passes on one, which is enough.
func answerWithToken(resource string, token allocation.Token, windows bool) *v1beta1.ContainerAllocateResponse {
	answer := &v1beta1.ContainerAllocateResponse{
		Envs:        map[string]string{allocation.EnvKey(resource): string(token)},
		Annotations: map[string]string{allocation.AnnotationKey(resource): string(token)},
	}
	if windows {
		answer.Devices = []*v1beta1.DeviceSpec{{HostPath: allocation.InterlockDeviceType + "://" + allocation.InterlockDeviceID}}
	} else {
		answer.Mounts = []*v1beta1.Mount{{ContainerPath: allocation.InterlockMount, HostPath: allocation.InterlockSource, ReadOnly: true}}
	}
	return answer
}
