package advertiser

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/directx-nri/directx-nri/internal/policy"
)

// prefer chooses size of the available replicas for one container. An earlier rule
// takes precedence over all later ones:
//
//  1. every replica of mustInclude is chosen;
//  2. all GPUs have one vendor and driver version: that of mustInclude's GPUs, and
//     without any the one whose choice is best by the later rules. When no driver has
//     enough replicas available, or mustInclude's GPUs already have several and not
//     enough, drivers are mixed if the rule allows it; otherwise it is an error;
//  3. as many different GPUs as possible, whatever the policy: a container gets no
//     more of a GPU by two of its replicas;
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
	c, err := p.newChoice(available, mustInclude)
	if err != nil {
		return nil, err
	}
	need, free := size-len(mustInclude), 0
	for _, g := range c.gpus {
		free += g.free
	}
	switch {
	case need < 0:
		return nil, fmt.Errorf("%w: %d replicas of %s requested, of which %d must be included", errInvalidRequest, size, p.resource, len(mustInclude))
	case need > free:
		return nil, fmt.Errorf("%w: %d replicas of %s requested and %d available", errInvalidRequest, size, p.resource, free+len(mustInclude))
	}
	sets := c.driverGroups(need)
	if len(sets) == 0 {
		usable := make([]bool, len(c.gpus))
		for i, g := range c.gpus {
			usable[i] = g.free+g.included > 0
		}
		return nil, p.mixedError(usable, size)
	}
	selections := make([]selection, 0, len(sets))
	for _, set := range sets {
		selections = append(selections, c.selectFrom(set, need))
	}
	// The sets are in the order of the source, and of equal ones the first is chosen.
	best := slices.MaxFunc(selections, func(a, b selection) int {
		return cmp.Or(cmp.Compare(a.distinctGPUs, b.distinctGPUs), p.byUse(b.load, a.load), cmp.Compare(b.nodes, a.nodes))
	})
	chosen := append(make([]string, 0, size), mustInclude...)
	for i, g := range c.gpus {
		for number, n := 0, best.gpus[i].included-g.included; n > 0; number++ {
			if g.open[number] {
				chosen = append(chosen, replicaID(p.gpus[i].instanceID, number))
				n--
			}
		}
	}
	return chosen, nil
}

// choice is one request for a preferred allocation, with a candidate for each GPU of the pool.
type choice struct {
	pool *pool
	gpus []candidate
}

// candidate is a GPU in one request.
type candidate struct {
	// open are the replicas that can still be chosen, by number, free is how many.
	open []bool
	free int
	// included is how many are in mustInclude, used how many containers have.
	included, used int
}

func (p *pool) newChoice(available, mustInclude []string) (*choice, error) {
	c := &choice{pool: p, gpus: make([]candidate, len(p.gpus))}
	for i, g := range p.gpus {
		c.gpus[i] = candidate{open: make([]bool, g.replicas), used: g.replicas}
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
		c.gpus[i].included++
		c.gpus[i].used--
	}
	for _, id := range available {
		if i, number, err := p.find(id); err == nil && !isIncluded[id] && !c.gpus[i].open[number] {
			c.gpus[i].open[number] = true
			c.gpus[i].free++
			c.gpus[i].used--
		}
	}
	return c, nil
}

// driverGroups returns the sets of GPUs of which one provides all of need replicas: by
// rule 2 the GPUs of each driver, and otherwise, if drivers can be mixed, all GPUs.
func (c *choice) driverGroups(need int) [][]int {
	var all []int
	var drivers, required []driver
	for i, g := range c.pool.gpus {
		all = append(all, i)
		if !slices.Contains(drivers, g.driver) {
			drivers = append(drivers, g.driver)
		}
		if c.gpus[i].included > 0 && !slices.Contains(required, g.driver) {
			required = append(required, g.driver)
		}
	}
	groups := slices.Collect(slices.Chunk(drivers, 1))
	switch {
	case len(required) > 1 && !bool(c.pool.rule.MixedDrivers):
		return nil
	case len(required) > 0:
		groups = [][]driver{required}
	}
	var enough [][]int
	for _, group := range groups {
		set, free := make([]int, 0, len(all)), 0
		for i, g := range c.pool.gpus {
			if slices.Contains(group, g.driver) {
				set = append(set, i)
				free += c.gpus[i].free
			}
		}
		if free >= need {
			enough = append(enough, set)
		}
	}
	if len(enough) == 0 && (bool(c.pool.rule.MixedDrivers) || need == 0) {
		return [][]int{all}
	}
	return enough
}

// selection is one way to choose replicas, with what ranks it among others.
type selection struct {
	// gpus are the candidates after the choice, which included counts.
	gpus []candidate
	// distinctGPUs is the number of different GPUs, mustInclude's among them.
	distinctGPUs int
	// load is the sum, over the chosen replicas, of how many replicas of their GPU were in use
	// before.
	load int
	// nodes is the number of NUMA nodes. Each GPU whose node is unknown counts as one.
	nodes int
}

// selectFrom chooses need replicas of the GPUs in set, which has enough, one at a time by
// rules 3 to 6.
func (c *choice) selectFrom(set []int, need int) selection {
	s := selection{gpus: slices.Clone(c.gpus)}
	onNode := map[int]int{} // the number of GPUs chosen from by NUMA node
	add := func(i int) {
		s.distinctGPUs++
		if node := c.pool.gpus[i].numaNode; node == nil {
			s.nodes++
		} else {
			onNode[*node]++
		}
	}
	for i, g := range c.gpus {
		if g.included > 0 {
			add(i)
		}
	}
	for ; need > 0; need-- {
		open := map[int]int{} // the number of GPUs to choose from by NUMA node
		for _, i := range set {
			if node := c.pool.gpus[i].numaNode; node != nil && s.gpus[i].free > 0 {
				open[*node]++
			}
		}
		// numaRank ranks GPUs by their nodes: those chosen from most, then those that provide most
		// of need.
		numaRank := func(i int) (chosen, provides int) {
			node := c.pool.gpus[i].numaNode
			if node == nil {
				return -1, 0
			}
			return onNode[*node], min(open[*node], need)
		}
		i := slices.MinFunc(set, func(a, b int) int {
			x, y := s.gpus[a], s.gpus[b]
			chosenX, providesX := numaRank(a)
			chosenY, providesY := numaRank(b)
			return cmp.Or(
				cmp.Compare(min(y.free, 1), min(x.free, 1)),
				cmp.Compare(min(x.included, 1), min(y.included, 1)),
				c.pool.byUse(x.used+x.included, y.used+y.included),
				cmp.Compare(chosenY, chosenX),
				cmp.Compare(providesY, providesX),
			)
		})
		if s.gpus[i].included == 0 {
			add(i)
		}
		s.load += s.gpus[i].used + s.gpus[i].included
		s.gpus[i].included++
		s.gpus[i].free--
	}
	s.nodes += len(onNode)
	return s
}

// byUse compares GPUs with a and b replicas in use: it is negative when the first is
// the better one to allocate from.
func (p *pool) byUse(a, b int) int {
	if p.rule.AllocationPolicy == policy.Packed {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}
