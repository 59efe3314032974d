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
//  2. all GPUs have one vendor and driver version, unless no driver has enough replicas: whether a
//     container may have several is for [pool.validate], as is how many it may have;
//  3. as many different GPUs as possible, whatever the policy: two replicas of one GPU give a
//     container no more of the GPU than one replica;
//  4. the GPUs with the fewest replicas in use, those chosen here included, or with the
//     most if the policy is packed. In use are the replicas that are not available;
//  5. the order of the source, and of one GPU the lowest numbers.
//
// NUMA nodes are for the kubelet's topology manager, which gets them from the list.
//
// The result begins with mustInclude, and does not depend on the order of available. IDs in available
// that cannot be allocated are ignored, because the kubelet may not have received a change yet. Errors
// match [ErrInvalidRequest].
func (p *pool) prefer(available, mustInclude []string, size int) ([]string, error) {
	all, err := p.candidates(available, mustInclude)
	if err != nil {
		return nil, err
	}
	need := size - len(mustInclude)
	if need < 0 || countFree(all) < need {
		return nil, fmt.Errorf("%w: %d replicas of %s requested, of which %d must be included, and %d others are available",
			ErrInvalidRequest, size, p.resource, len(mustInclude), countFree(all))
	}
	candidates := p.ofOneDriver(all, need)
	ids := slices.Clone(mustInclude)
	for range need {
		best := slices.MinFunc(candidates, p.order)
		ids = append(ids, allocation.ReplicaID(best.key, best.free[0]))
		best.free, best.chosen = best.free[1:], best.chosen+1
	}
	return ids, nil
}

// candidate is a GPU of the pool that has an available replica, or one of mustInclude.
type candidate struct {
	gpu
	free   []int // the numbers of the available replicas, sorted
	chosen int
}

func countFree(candidates []*candidate) (n int) {
	for _, c := range candidates {
		n += len(c.free)
	}
	return n
}

// candidates returns the candidates for a request, in the order of p.
func (p *pool) candidates(available, mustInclude []string) ([]*candidate, error) {
	all := make([]*candidate, len(p.gpus))
	for i, g := range p.gpus {
		all[i] = &candidate{gpu: g}
	}
	for _, id := range mustInclude {
		i, _, err := p.find(id)
		if err != nil {
			return nil, fmt.Errorf("replica to include: %w", err)
		}
		all[i].chosen++
	}
	for _, id := range available {
		if i, number, err := p.find(id); err == nil && !slices.Contains(mustInclude, id) {
			all[i].free = append(all[i].free, number)
		}
	}
	for _, c := range all {
		slices.Sort(c.free)
	}
	return slices.DeleteFunc(all, func(c *candidate) bool { return len(c.free)+c.chosen == 0 }), nil
}

// ofOneDriver returns the candidates of the driver with the most GPUs, up to need, of those that have need
// available replicas. No other driver has a replica that must be included. If there is none, it returns all.
func (p *pool) ofOneDriver(all []*candidate, need int) (best []*candidate) {
	for _, first := range slices.SortedStableFunc(slices.Values(all), p.order) {
		isOther := func(c *candidate) bool { return !c.hasDriverOf(first.gpu) }
		group := slices.DeleteFunc(slices.Clone(all), isOther)
		if countFree(group) < need || slices.ContainsFunc(all, func(c *candidate) bool { return isOther(c) && c.chosen > 0 }) {
			continue
		}
		if best == nil || min(len(group), need) > min(len(best), need) {
			best = group
		}
	}
	if best == nil {
		return all
	}
	return best
}

// order returns a negative number if a replica of a is chosen before one of b, by criteria 3 and 4.
func (p *pool) order(a, b *candidate) int {
	inUse := cmp.Compare(a.offered-len(a.free), b.offered-len(b.free))
	if p.rule.AllocationPolicy == policy.Packed {
		inUse = -inUse
	}
	return cmp.Or(cmp.Compare(min(len(b.free), 1), min(len(a.free), 1)), cmp.Compare(min(a.chosen, 1), min(b.chosen, 1)), inUse)
}
