package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
)

func (j *judge) kubelet() {
	k := j.Kubelet
	j.looked(CheckKubelet)
	switch {
	case j.isDenied(k.FolderErr, k.Folder) || j.isDenied(k.SocketErr, k.Folder):
		return
	case k.FolderErr != nil:
		j.problem(CheckKubelet, k.Folder, fmt.Sprintf("the kubelet's folder for device plugins cannot be used: %v", k.FolderErr), "no GPU can be offered to the cluster", "start the kubelet, or say --role standalone where there is none")
		return
	case k.SocketErr != nil:
		j.problem(CheckKubelet, k.Folder, fmt.Sprintf("the kubelet takes no device plugins in %s: %v", k.Folder, k.SocketErr), "no GPU can be offered to the cluster", "start the kubelet; where this node has none any more, say --role standalone")
	}
	if j.Config.Err != nil {
		return // It is not known which resources there are to be.
	}
	j.advertiser()
	if !j.has(CheckKubelet, CheckAdvertiser, CheckMetrics) {
		j.registration()
	}
}

func (j *judge) advertiser() {
	k := j.Kubelet
	j.looked(CheckAdvertiser)
	var errs []error
	var silent []string
	for _, resource := range slices.Sorted(maps.Keys(k.Advertiser)) {
		if err := k.Advertiser[resource]; err != nil && !j.isDenied(err, "directx-advertiser in "+k.Folder) {
			errs, silent = append(errs, err), append(silent, resource)
		}
	}
	if len(errs) > 0 && !j.taken(programAdvertiser) {
		j.problem(CheckAdvertiser, strings.Join(silent, ", "), fmt.Sprintf("directx-advertiser does not answer in %s: %v", k.Folder, errs[0]), "the kubelet is offered no GPU, and pods that ask for one stay pending",
			"start directx-advertiser; see its log if it ends")
	}
}

func (j *judge) registration() {
	k := j.Kubelet
	j.looked(CheckPodResources)
	switch {
	case k.PodResourcesErr == nil:
	case j.isDenied(k.PodResourcesErr, k.PodResources):
		return
	case errors.Is(k.PodResourcesErr, errors.ErrUnsupported):
		return // An old kubelet, which does not tell.
	default:
		j.problem(CheckPodResources, k.PodResources, fmt.Sprintf("the kubelet does not tell what it hands out: %v", k.PodResourcesErr), "GPUs of pods that are gone stay taken, and it is not known whether GPUs are registered",
			"say where its PodResources socket is with --pod-resources-socket, to directx-advertiser too")
		return
	}
	j.looked(CheckRegistration)
	// Nothing is offered by design where containers would not get it.
	if j.has(CheckDevices, CheckInventory) && len(j.GPUs.List) == 0 || j.has(CheckHandlers, CheckLoaded, CheckShim, CheckContainerd) && !j.served(ServedByNRI) && !j.served(ServedByKubelet) {
		return
	}
	missing := map[string][]string{}
	whole := map[string]bool{}
	for _, d := range j.GPUs.List {
		if d.Kind() == discovery.KindNone || !d.Health.OK() {
			continue
		}
		resource := j.resourceOf(d)
		if resource == "" {
			continue
		}
		if replicas(k.Allocatable[resource], d.InstanceID) == 0 {
			missing[resource] = append(missing[resource], d.Name())
		} else {
			whole[resource] = true
		}
	}
	for _, resource := range slices.Sorted(maps.Keys(missing)) {
		problem := "the kubelet does not offer " + resource
		if whole[resource] {
			problem = fmt.Sprintf("the kubelet offers %s without GPU %s", resource, few(missing[resource]))
		}
		j.problem(CheckRegistration, resource, problem, "pods that ask for it stay pending, or share fewer GPUs than there are",
			"see the log of directx-advertiser, and whether it runs with the same --inventory")
	}
}

// resourceOf returns the resource that offers d, "" for none.
func (j *judge) resourceOf(d GPU) string {
	if rule := resources.Assign([]discovery.Device{d.Device}, resources.FromConfig(j.rules()))[0].Rule; rule != nil {
		return rule.Name
	}
	return ""
}

// replicas counts those of a GPU among device IDs, which are the instance ID and
// a number behind "::".
func replicas(ids []string, instanceID string) int {
	n := 0
	for _, id := range ids {
		if i := strings.LastIndex(id, "::"); i >= 0 && strings.EqualFold(id[:i], instanceID) {
			n++
		}
	}
	return n
}
