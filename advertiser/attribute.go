package advertiser

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"directx-nri/internal/allocation"
)

// AttributePeriod is how often an [Attributor] asks the kubelet, while there is
// something to ask.
const AttributePeriod = 10 * time.Second

// Attributor finds out whose the allocations are that were answered to the
// kubelet with devices ([Config.Inject]): nobody presents their records, and
// the kubelet does not say in Allocate for whom it asks. It asks the kubelet
// afterwards and binds the records, so that people can be told and the records end.
type Attributor struct {
	Recorder *allocation.Recorder
	// PodResources is the kubelet's PodResources socket.
	PodResources string
	// Period is how often it looks; 0 is [AttributePeriod].
	Period time.Duration
	Log    logrus.FieldLogger
}

// Run attributes until ctx ends, and returns nil then.
func (a *Attributor) Run(ctx context.Context) error {
	period := a.Period
	if period == 0 {
		period = AttributePeriod
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := a.look(ctx); err != nil && ctx.Err() == nil {
			a.Log.WithError(err).Debug("cannot tell yet whose some allocations are")
		}
	}
}

func (a *Attributor) look(ctx context.Context) error {
	live, err := a.Recorder.Live()
	if err != nil {
		return err
	}
	nobodys := slices.DeleteFunc(live, func(r allocation.LiveRecord) bool { return !r.Injected || r.Holder != nil })
	if len(nobodys) == 0 {
		return nil
	}
	pods, err := listPodResources(ctx, a.PodResources)
	if err != nil {
		return err
	}
	var failed error
	for _, record := range nobodys {
		pod, container, ok := owner(pods, record)
		if !ok {
			continue
		}
		if err := a.Recorder.Attribute(record.ID, pod.Namespace, pod.Name, container); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		a.Log.WithFields(logrus.Fields{"allocation": record.ID, "pod": pod.String(), "container": container}).Info("allocation is this container's")
	}
	return failed
}

// owner returns the one container that has exactly the replicas of record. A
// replica that an init container had before is listed with a later one, whose
// record names it too, and perhaps others.
func owner(pods []*podresources.PodResources, record allocation.LiveRecord) (Pod, string, bool) {
	want := make([]string, 0, len(record.Replicas))
	for _, r := range record.Replicas {
		want = append(want, r.ID)
	}
	slices.Sort(want)
	var found Pod
	var name string
	number := 0
	for _, pod := range pods {
		for _, container := range pod.GetContainers() {
			var has []string
			for _, devices := range container.GetDevices() {
				if devices.GetResourceName() == record.Resource {
					has = append(has, devices.GetDeviceIds()...)
				}
			}
			slices.Sort(has)
			if slices.Equal(has, want) {
				found, name = Pod{pod.GetNamespace(), pod.GetName()}, container.GetName()
				number++
			}
		}
	}
	return found, name, number == 1
}
