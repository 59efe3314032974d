package advertiser

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"directx-nri/internal/policy"
)

// terms are how a resource's GPUs are given to containers. The rules of one name
// have them in common.
//
// They are checked twice, in GetPreferredAllocation and in Allocate: the kubelet
// does not ask for a preference when the replicas of an init container, or those of
// a NUMA node, are just enough (devicesToAllocate in pkg/kubelet/cm/devicemanager,
// v1.34). Either error ends the pod's admission, and its text is the pod's status.
type terms struct {
	policy policy.AllocationPolicy
	// maxPerContainer is 0 for no limit.
	maxPerContainer int
	// mixed allows GPUs of different drivers in one container.
	mixed bool
}

// termsOf returns the terms of a resource, the zero value if no rule has its name.
func termsOf(resource string, rules []policy.Resource) terms {
	i := slices.IndexFunc(rules, func(r policy.Resource) bool { return r.Name == resource })
	if i < 0 {
		return terms{}
	}
	return terms{policy: rules[i].Policy, maxPerContainer: rules[i].MaxPerContainer, mixed: rules[i].MixedDrivers}
}

// checkCount refuses more replicas than one container may have.
func (p *pool) checkCount(n int) error {
	if limit := p.terms.maxPerContainer; limit > 0 && n > limit {
		return fmt.Errorf("%w: a container requests %d of %s and the limit of this node is %d: request fewer, or raise maxPerContainer of that resource in the configuration",
			ErrInvalidRequest, n, p.resource, limit)
	}
	return nil
}

// checkDrivers refuses n replicas for one container whose GPUs, those that are
// chosen, have different drivers.
func (p *pool) checkDrivers(chosen []bool, n int) error {
	var drivers []driver
	for i, g := range p.gpus {
		if chosen[i] && !slices.Contains(drivers, g.driver) {
			drivers = append(drivers, g.driver)
		}
	}
	if p.terms.mixed || len(drivers) < 2 {
		return nil
	}
	return p.mixedError(chosen, n)
}

// mixedError is the error of a request for n replicas that only the chosen GPUs, of
// different drivers, could meet.
func (p *pool) mixedError(chosen []bool, n int) error {
	var names []string
	for i, g := range p.gpus {
		if chosen[i] {
			names = append(names, fmt.Sprintf("%s (%s, driver %s)", g.name, g.driver.vendor, cmp.Or(g.driver.version, "unknown")))
		}
	}
	return fmt.Errorf("%w: %d of %s for one container would mix GPUs of different drivers, and a container can have the files of one: %s. Request fewer, wait for GPUs of one driver, or set mixedDrivers: allow for that resource in the configuration",
		ErrInvalidRequest, n, p.resource, strings.Join(names, ", "))
}

// byUse compares GPUs with a and b replicas in use: it is negative when the first is
// the better one to allocate from.
func (t terms) byUse(a, b int) int {
	if t.policy == policy.Packed {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}
