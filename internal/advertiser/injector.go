package advertiser

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/decision"
	"github.com/directx-nri/directx-nri/internal/deviceplugin"
	"github.com/directx-nri/directx-nri/internal/discovery"
	"github.com/directx-nri/directx-nri/internal/ocispec"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// injector makes the answers to the kubelet that give containers their GPUs if the configuration has
// injection: kubelet. They have the edits that the NRI plugin and the shim make, as far as an answer
// can express them.
type injector struct {
	// source has the node's GPUs, as [decision.Decider] has them.
	source discovery.Source
	files  ocispec.Files
	os     string
	policy policy.Policy
	log    logrus.FieldLogger
}

// inject implements [deviceplugin.Inject].
func (i *injector) inject(ctx context.Context, resource string, replicas []allocation.Replica) (*v1beta1.ContainerAllocateResponse, error) {
	devices, err := decision.AllocatedDevices(ctx, i.source, replicas)
	if err != nil {
		return nil, decision.WithDefaultRemedy(err)
	}
	for n := range devices {
		devices[n].LibraryPath = nil // It would replace the image's LD_LIBRARY_PATH.
	}
	edits, skipped, err := ocispec.BuildEdits(i.os, devices, nil, i.files, i.policy)
	if err != nil {
		return nil, decision.WithDefaultRemedy(err)
	}
	ocispec.LogSkipped(i.log.WithField("resource", resource), skipped)
	answer, err := newAnswer(edits)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", deviceplugin.ErrNotInjectable, err)
	}
	return answer, nil
}
