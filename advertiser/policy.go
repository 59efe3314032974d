package advertiser

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"directx-nri/internal/config"
)

// The rules of [terms] are checked twice: when the kubelet asks what it should
// allocate, and when it allocates. It does not ask when the replicas of an init
// container, or those of the NUMA node that it wants, are just enough
// (devicesToAllocate in pkg/kubelet/cm/devicemanager, v1.34). Either error ends
// the pod's admission, and its text is the pod's status.

// checkSize refuses more replicas than one container may have.
func (p *pool) checkSize(size int) error {
	if limit := p.terms.maxPerContainer; limit > 0 && size > limit {
		return fmt.Errorf("%w: a container asks for %d of %s and may have %d on this node: ask for fewer, or raise maxPerContainer of that resource in the configuration",
			ErrInvalidRequest, size, p.resource, limit)
	}
	return nil
}

// checkTogether refuses size replicas that one container may not have together;
// given is how many of each GPU.
func (p *pool) checkTogether(given []int, size int) error {
	if !p.terms.mixed {
		var drivers []driver
		for i, n := range given {
			if n > 0 && !slices.Contains(drivers, p.gpus[i].driver) {
				drivers = append(drivers, p.gpus[i].driver)
			}
		}
		if len(drivers) > 1 {
			return p.mixedError(func(i int) bool { return given[i] > 0 }, size)
		}
	}
	if p.wholeGPUs(size) && slices.ContainsFunc(p.indices(), func(i int) bool { return given[i] > 0 && (given[i] < p.gpus[i].replicas || p.gpus[i].reduced()) }) {
		return p.wholeError(size)
	}
	return nil
}

// mixedError refuses a request that only GPUs of several drivers could meet,
// those that of tells.
func (p *pool) mixedError(of func(i int) bool, size int) error {
	var names []string
	for i, g := range p.gpus {
		if of(i) {
			names = append(names, fmt.Sprintf("%s (%s, driver %s)", g.name, g.driver.vendor, cmp.Or(g.driver.version, "unknown")))
		}
	}
	return fmt.Errorf("%w: %d of %s for one container would mix GPUs of different drivers, of which only one's files could be in it: %s. Ask for fewer, wait for GPUs of one driver, or set mixedDrivers: allow for that resource in the configuration",
		ErrInvalidRequest, size, p.resource, strings.Join(names, ", "))
}

func (p *pool) wholeError(size int) error {
	return fmt.Errorf("%w: %d of %s are whole GPUs, and there are not enough that nobody else is on: wait until they are free, ask for a number that is no multiple of the replicas of a GPU, or set exclusiveRequests: false for that resource in the configuration",
		ErrInvalidRequest, size, p.resource)
}

// reduced tells a GPU of which containers may still hold replicas that are
// offered no longer.
func (g gpu) reduced() bool { return g.listed > g.replicas }

// wholeGPUs tells whether a request for size replicas is one for whole GPUs. A
// GPU of one replica is nobody else's anyway, and makes no request special.
func (p *pool) wholeGPUs(size int) bool {
	return p.terms.exclusive && size > 0 && slices.ContainsFunc(p.gpus, func(g gpu) bool {
		return g.usable() && g.replicas > 1 && size%g.replicas == 0
	})
}

func (p *pool) indices() []int {
	all := make([]int, len(p.gpus))
	for i := range all {
		all[i] = i
	}
	return all
}

// byUse compares how well GPUs with a and b replicas in use are suited to give
// one more: negative when a's is.
func (t terms) byUse(a, b int) int {
	if t.policy == config.Packed {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}
