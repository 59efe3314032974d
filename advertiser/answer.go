package advertiser

import (
	"context"
	"errors"
	"slices"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
)

// Inject returns the answer to the kubelet that gives one container GPUs of a
// resource, for nodes on which neither the NRI plugin nor the runtime shim does. Each
// GPU is named once, by instance ID. An error matches [ErrNotInjectable] if the
// request is the cause.
//
// The kubelet repeats the answer at each start of the container. It merges the
// answers of several resources by ContainerPath of devices and mounts and by name of
// variables, and of two with the same key it drops an arbitrary one
// (deviceRunContainerOptions in pkg/kubelet/cm/devicemanager, v1.34).
type Inject func(ctx context.Context, resource string, instanceIDs []string) (*v1beta1.ContainerAllocateResponse, error)

// ErrNotInjectable is returned for a request that an answer to the kubelet cannot
// express.
var ErrNotInjectable = errors.New("the kubelet cannot pass it on")

// answer returns the answer for a container. Without [Config.Inject] it has the token of the
// container's allocation record, and the interlock, with which no runtime starts a container
// whose record was not looked up.
//
// containerd accepts Windows devices without a container path and permissions only
// (WithDevices in pkg/cri/opts/spec_windows_opts.go, v1.7). Of the interlocks of
// several resources the kubelet passes on one, which is enough.
func (s *server) answer(ctx context.Context, token allocation.Token, replicas []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error) {
	if s.config.Inject != nil {
		var instanceIDs []string
		for _, r := range replicas {
			if !slices.Contains(instanceIDs, r.InstanceID) {
				instanceIDs = append(instanceIDs, r.InstanceID)
			}
		}
		return s.config.Inject(ctx, s.resource, instanceIDs)
	}
	answer := &v1beta1.ContainerAllocateResponse{
		Envs:        map[string]string{allocation.EnvKey(s.resource): string(token)},
		Annotations: map[string]string{allocation.AnnotationKey(s.resource): string(token)},
	}
	if s.config.NodeOS == "windows" {
		answer.Devices = []*v1beta1.DeviceSpec{{HostPath: allocation.InterlockDeviceType + "://" + allocation.InterlockDeviceID}}
	} else {
		answer.Mounts = []*v1beta1.Mount{{ContainerPath: allocation.InterlockMount, HostPath: allocation.InterlockSource, ReadOnly: true}}
	}
	return answer, nil
}
