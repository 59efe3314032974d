package deviceplugin

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// prefer chooses size of the available replicas for one container. An earlier criterion
// takes precedence over all later ones:
//
//  1. every replica of mustInclude is chosen;
//  2. all GPUs have one vendor and driver version: that of mustInclude's GPUs, or if
//     mustInclude is empty, the one that is best by the later criteria. When no driver has
//     enough available replicas, or mustInclude's GPUs already have several drivers and not
//     enough replicas, drivers are mixed if the resource allows it; otherwise it is an error;
//  3. as many different GPUs as possible, whatever the policy: two replicas of one GPU give a
//     container no more of the GPU than one replica;
//  4. the GPUs with the fewest replicas in use, those chosen here included, or with the
//     most if the policy is packed. In use are the replicas that are not available;
//  5. the order of the source, and of one GPU the lowest numbers.
//
// NUMA nodes are for the kubelet's topology manager, which gets them from [pool.list].
//
// The result begins with mustInclude, and depends on the arguments only: not on the
// order of available. IDs in available that are unknown or belong to an unhealthy GPU
// are ignored, because the kubelet may not have received a change yet; replicas of
// mustInclude are available. Errors match [errInvalidRequest].
func (p *pool) prefer(available, mustInclude []string, size int) ([]string, error) {
	if err := p.checkCount(size); err != nil {
		return nil, err
	}
	candidates, err := p.candidates(available, mustInclude)
	if err != nil {
		return nil, err
	}
	need, numAvailable := size-len(mustInclude), countAvailable(candidates)
	switch {
	case need < 0:
		return nil, fmt.Errorf("%w: %d replicas of %s requested, of which %d must be included",
			errInvalidRequest, size, p.resource, len(mustInclude))
	case need > numAvailable:
		return nil, fmt.Errorf("%w: %d replicas of %s requested and %d available",
			errInvalidRequest, size, p.resource, numAvailable+len(mustInclude))
	}
	groups := p.driverGroups(candidates, need)
	if len(groups) == 0 {
		usable := make([]bool, len(candidates))
		for i, c := range candidates {
			usable[i] = len(c.available)+c.included > 0
		}
		return nil, p.mixedDriversError(usable, size)
	}
	selections := make([]selection, 0, len(groups))
	for _, group := range groups {
		selections = append(selections, p.selectFrom(group, need))
	}
	// The groups are in the order of the source. Of equally good ones, the first is chosen.
	best := slices.MaxFunc(selections, func(a, b selection) int {
		return cmp.Or(cmp.Compare(a.distinctGPUs, b.distinctGPUs), p.compareInUse(b.totalInUse, a.totalInUse))
	})
	chosen := append(make([]string, 0, size), mustInclude...)
	for i, c := range candidates {
		for _, number := range c.available[:best.candidates[i].included-c.included] { // The lowest ones were chosen.
			chosen = append(chosen, allocation.ReplicaID(c.instanceID, number))
		}
	}
	return chosen, nil
}

// candidate is a GPU of the pool in one request.
type candidate struct {
	gpu
	// available are the numbers of the replicas that can still be chosen, sorted.
	available []int
	// included is the number of replicas that are in mustInclude or have been chosen.
	included int
}

// inUse returns how many replicas are in use, the chosen ones included.
func (c candidate) inUse() int { return len(c.allocatable) - len(c.available) }

func countAvailable(candidates []candidate) (n int) {
	for _, c := range candidates {
		n += len(c.available)
	}
	return n
}

// candidates returns the GPUs of p, in its order.
func (p *pool) candidates(available, mustInclude []string) ([]candidate, error) {
	candidates := make([]candidate, len(p.gpus))
	isAvailable := make([][]bool, len(p.gpus)) // by position in allocatable
	for i, g := range p.gpus {
		candidates[i] = candidate{gpu: g, available: make([]int, 0, len(g.allocatable))}
		isAvailable[i] = make([]bool, len(g.allocatable))
	}
	isIncluded := map[string]bool{}
	for _, id := range mustInclude {
		i, _, err := p.find(id)
		if err != nil {
			return nil, fmt.Errorf("replica to include: %w", err)
		}
		if isIncluded[id] {
			return nil, fmt.Errorf("%w: %q must be included twice", errInvalidRequest, id)
		}
		isIncluded[id] = true
		candidates[i].included++
	}
	for _, id := range available {
		if i, position, err := p.find(id); err == nil && !isIncluded[id] {
			isAvailable[i][position] = true
		}
	}
	for i := range candidates {
		for position, number := range candidates[i].allocatable {
			if isAvailable[i][position] {
				candidates[i].available = append(candidates[i].available, number)
			}
		}
	}
	return candidates, nil
}

// driverGroups returns the groups that criterion 2 permits and that have need available replicas. Each
// is a copy of the candidates in which only GPUs of one driver are available. If there is no such group
// and drivers can be mixed, the only group has all candidates.
func (p *pool) driverGroups(candidates []candidate, need int) (groups [][]candidate) {
	var drivers, required []driver
	for _, c := range candidates {
		if !slices.Contains(drivers, c.driver) {
			drivers = append(drivers, c.driver)
		}
		if c.included > 0 && !slices.Contains(required, c.driver) {
			required = append(required, c.driver)
		}
	}
	mixed := p.rule.MixedDrivers == policy.AllowMixed
	if len(required) > 1 && !mixed {
		return nil
	}
	driverSets := slices.Collect(slices.Chunk(drivers, 1))
	if len(required) > 0 {
		driverSets = [][]driver{required}
	}
	for _, driverSet := range driverSets {
		group := slices.Clone(candidates)
		for i, c := range group {
			if !slices.Contains(driverSet, c.driver) {
				group[i].available = nil
			}
		}
		if countAvailable(group) >= need {
			groups = append(groups, group)
		}
	}
	if len(groups) == 0 && mixed {
		groups = [][]candidate{slices.Clone(candidates)}
	}
	return groups
}

// selection is one way to choose replicas, with the values by which it is compared to others.
type selection struct {
	candidates []candidate
	// distinctGPUs is the number of different GPUs, including those of mustInclude.
	distinctGPUs int
	// totalInUse is a sum over the chosen replicas: the number of replicas of the same GPU that
	// were in use before.
	totalInUse int
}

// selectFrom chooses need of the candidates' replicas, one at a time by criteria 3 to 5. The
// candidates must have that many.
func (p *pool) selectFrom(candidates []candidate, need int) selection {
	s := selection{candidates: candidates}
	for ; need > 0; need-- {
		var open []*candidate
		for i := range candidates {
			if len(candidates[i].available) > 0 {
				open = append(open, &candidates[i])
			}
		}
		best := slices.MinFunc(open, func(a, b *candidate) int {
			return cmp.Or(cmp.Compare(min(a.included, 1), min(b.included, 1)), p.compareInUse(a.inUse(), b.inUse()))
		})
		s.totalInUse += best.inUse()
		best.included++
		best.available = best.available[1:]
	}
	for _, c := range candidates {
		s.distinctGPUs += min(c.included, 1)
	}
	return s
}

// compareInUse compares two GPUs with a and b replicas in use by criterion 4: it returns a negative
// number if the first GPU is preferred.
func (p *pool) compareInUse(a, b int) int {
	if p.rule.AllocationPolicy == policy.Packed {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}
