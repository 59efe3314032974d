package advertiser

import (
	"cmp"
	"fmt"
	"slices"

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
//  5. GPUs of one NUMA node, known nodes before unknown ones;
//  6. the order of the source, and of one GPU the lowest numbers.
//
// The result begins with mustInclude, and depends on the arguments only: not on the
// order of available. IDs in available that are unknown or belong to an unhealthy GPU
// are ignored, because the kubelet may not have received a change yet; replicas of
// mustInclude are available. Errors match [errInvalidRequest].
func (p *pool) prefer(available, mustInclude []string, size int) ([]string, error) {
	if err := p.checkCount(size); err != nil {
		return nil, err
	}
	r, err := p.newPreferredRequest(available, mustInclude)
	if err != nil {
		return nil, err
	}
	need, numAvailable := size-len(mustInclude), 0
	for _, g := range r.candidates {
		numAvailable += g.numAvailable
	}
	switch {
	case need < 0:
		return nil, fmt.Errorf("%w: %d replicas of %s requested, of which %d must be included", errInvalidRequest, size, p.resource, len(mustInclude))
	case need > numAvailable:
		return nil, fmt.Errorf("%w: %d replicas of %s requested and %d available", errInvalidRequest, size, p.resource, numAvailable+len(mustInclude))
	}
	groups := r.driverGroups(need)
	if len(groups) == 0 {
		usable := make([]bool, len(r.candidates))
		for i, g := range r.candidates {
			usable[i] = g.numAvailable+g.included > 0
		}
		return nil, p.mixedDriversError(usable, size)
	}
	selections := make([]selection, 0, len(groups))
	for _, group := range groups {
		selections = append(selections, r.selectFrom(group, need))
	}
	// The groups are in the order of the source. Of equally good ones, the first is chosen.
	best := slices.MaxFunc(selections, func(a, b selection) int {
		return cmp.Or(cmp.Compare(a.distinctGPUs, b.distinctGPUs), p.compareInUse(b.totalInUse, a.totalInUse), cmp.Compare(b.numaNodes, a.numaNodes))
	})
	chosen := append(make([]string, 0, size), mustInclude...)
	for i, g := range r.candidates {
		for number, n := 0, best.candidates[i].included-g.included; n > 0; number++ {
			if g.isAvailable[number] {
				chosen = append(chosen, replicaID(p.gpus[i].instanceID, number))
				n--
			}
		}
	}
	return chosen, nil
}

// preferredRequest is one request for a preferred allocation.
type preferredRequest struct {
	pool *pool
	// candidates are the pool's GPUs, in its order.
	candidates []candidate
}

// candidate is a GPU in one request.
type candidate struct {
	// isAvailable reports by number whether a replica is available and not in mustInclude.
	isAvailable []bool
	// numAvailable is the number of those that are not chosen yet.
	numAvailable int
	// included is the number of replicas in mustInclude, and later also of those chosen.
	included int
	// inUse is the number of replicas that containers have.
	inUse int
}

func (p *pool) newPreferredRequest(available, mustInclude []string) (*preferredRequest, error) {
	r := &preferredRequest{pool: p, candidates: make([]candidate, len(p.gpus))}
	for i, g := range p.gpus {
		r.candidates[i] = candidate{isAvailable: make([]bool, g.replicas), inUse: g.replicas}
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
		r.candidates[i].included++
		r.candidates[i].inUse--
	}
	for _, id := range available {
		if i, number, err := p.find(id); err == nil && !isIncluded[id] && !r.candidates[i].isAvailable[number] {
			r.candidates[i].isAvailable[number] = true
			r.candidates[i].numAvailable++
			r.candidates[i].inUse--
		}
	}
	return r, nil
}

// driverGroups returns the groups of GPUs, by their indices, that criterion 2 permits and that have need
// available replicas: the GPUs of each driver, or if there is no such group and drivers can be
// mixed, all GPUs.
func (r *preferredRequest) driverGroups(need int) [][]int {
	var all []int
	var drivers, required []driver
	for i, g := range r.pool.gpus {
		all = append(all, i)
		if !slices.Contains(drivers, g.driver) {
			drivers = append(drivers, g.driver)
		}
		if r.candidates[i].included > 0 && !slices.Contains(required, g.driver) {
			required = append(required, g.driver)
		}
	}
	driverSets := slices.Collect(slices.Chunk(drivers, 1))
	switch {
	case len(required) > 1 && !bool(r.pool.rule.MixedDrivers):
		return nil
	case len(required) > 0:
		driverSets = [][]driver{required}
	}
	var groups [][]int
	for _, driverSet := range driverSets {
		group, available := make([]int, 0, len(all)), 0
		for i, g := range r.pool.gpus {
			if slices.Contains(driverSet, g.driver) {
				group = append(group, i)
				available += r.candidates[i].numAvailable
			}
		}
		if available >= need {
			groups = append(groups, group)
		}
	}
	if len(groups) == 0 && (bool(r.pool.rule.MixedDrivers) || need == 0) {
		return [][]int{all}
	}
	return groups
}

// selection is one way to choose replicas, with the values by which it is compared to others.
type selection struct {
	// candidates are those of the request, updated by each replica that is chosen.
	candidates []candidate
	// distinctGPUs is the number of different GPUs, including those of mustInclude.
	distinctGPUs int
	// totalInUse is a sum over the chosen replicas: the number of replicas of the same GPU that
	// were in use before.
	totalInUse int
	// numaNodes is the number of NUMA nodes. Each GPU whose node is unknown counts as one.
	numaNodes int
}

// selectFrom chooses need replicas of the GPUs in group, one at a time by criteria 3 to 6. The group
// has enough of them.
func (r *preferredRequest) selectFrom(group []int, need int) selection {
	s := selection{candidates: slices.Clone(r.candidates)}
	chosenOnNode := map[int]int{} // the number of GPUs of which replicas are chosen, by NUMA node
	addGPU := func(i int) {
		s.distinctGPUs++
		if node := r.pool.gpus[i].numaNode; node == nil {
			s.numaNodes++
		} else {
			chosenOnNode[*node]++
		}
	}
	for i, g := range r.candidates {
		if g.included > 0 {
			addGPU(i)
		}
	}
	for ; need > 0; need-- {
		availableOnNode := map[int]int{} // the number of GPUs with available replicas, by NUMA node
		for _, i := range group {
			if node := r.pool.gpus[i].numaNode; node != nil && s.candidates[i].numAvailable > 0 {
				availableOnNode[*node]++
			}
		}
		// numaRank returns the numbers by which GPUs are ranked: how many GPUs of the same node are
		// chosen already, then how many of the needed GPUs the node can provide.
		numaRank := func(i int) (chosen, provides int) {
			node := r.pool.gpus[i].numaNode
			if node == nil {
				return -1, 0
			}
			return chosenOnNode[*node], min(availableOnNode[*node], need)
		}
		i := slices.MinFunc(group, func(a, b int) int {
			x, y := s.candidates[a], s.candidates[b]
			chosenX, providesX := numaRank(a)
			chosenY, providesY := numaRank(b)
			return cmp.Or(
				cmp.Compare(min(y.numAvailable, 1), min(x.numAvailable, 1)),
				cmp.Compare(min(x.included, 1), min(y.included, 1)),
				r.pool.compareInUse(x.inUse+x.included, y.inUse+y.included),
				cmp.Compare(chosenY, chosenX),
				cmp.Compare(providesY, providesX),
			)
		})
		if s.candidates[i].included == 0 {
			addGPU(i)
		}
		s.totalInUse += s.candidates[i].inUse + s.candidates[i].included
		s.candidates[i].included++
		s.candidates[i].numAvailable--
	}
	s.numaNodes += len(chosenOnNode)
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
