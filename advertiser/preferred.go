package advertiser

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
)

// prefer chooses size of the available replicas for one container. An earlier rule
// takes precedence over all later ones:
//
//  1. every replica of mustInclude is chosen;
//  2. all GPUs have one vendor and driver version: that of mustInclude's GPUs, and
//     without any the one whose choice is best by the later rules. When no driver has
//     enough replicas available, or mustInclude's GPUs already have several and not
//     enough, drivers are mixed if the terms allow it; otherwise it is an error;
//  3. as many different GPUs as possible, whatever the policy: a container gets no
//     more of a GPU by two of its replicas;
//  4. the GPUs with the fewest replicas in use, or the most if the policy is packed.
//     In use are the replicas that are not available. Once every GPU has given one,
//     each further replica comes from the GPU with the fewest (the most) in use, those
//     chosen here included;
//  5. GPUs of one NUMA node, known nodes before unknown ones;
//  6. the order of the source, and of one GPU the lowest numbers.
//
// The result begins with mustInclude, and depends on the arguments only: not on the
// order of available. IDs in available that are unknown or belong to an unhealthy GPU
// are ignored, because the kubelet may not have received a change yet; replicas of
// mustInclude are available. Errors match [ErrInvalidRequest].
func (p *pool) prefer(available, mustInclude []string, size int) ([]string, error) {
	if err := p.checkCount(size); err != nil {
		return nil, err
	}
	c := newChoice(p)
	for _, id := range available {
		if i, number, err := p.find(id); err == nil && p.gpus[i].usable() {
			c.open[i].set(number)
		}
	}
	for _, id := range mustInclude {
		i, number, err := p.find(id)
		if err != nil {
			return nil, fmt.Errorf("replica to include: %w", err)
		}
		if c.taken[i].has(number) {
			return nil, fmt.Errorf("%w: %q must be included twice", ErrInvalidRequest, id)
		}
		c.open[i].set(number)
		c.taken[i].set(number)
	}
	total := 0
	for i := range p.gpus {
		c.free[i] = c.open[i].count() - c.taken[i].count()
		c.inUse[i] = p.gpus[i].replicas - c.open[i].count()
		c.given[i] = c.taken[i].count()
		total += c.open[i].count()
	}
	switch {
	case size < len(mustInclude):
		return nil, fmt.Errorf("%w: %d replicas of %s requested, of which %d must be included", ErrInvalidRequest, size, p.resource, len(mustInclude))
	case size > total:
		return nil, fmt.Errorf("%w: %d replicas of %s requested and %d available", ErrInvalidRequest, size, p.resource, total)
	}
	best, err := c.best(size)
	if err != nil {
		return nil, err
	}
	chosen := make([]string, 0, size)
	chosen = append(chosen, mustInclude...)
	for i, n := range best.picks {
		chosen = append(chosen, c.lowest(i, n)...)
	}
	return chosen, nil
}

// choice is one request for a preferred allocation. Its slices have one element for
// each GPU of the pool.
type choice struct {
	pool *pool
	// open are the replicas that may be chosen, taken those that must be.
	open, taken []bitset
	// free is how many can still be chosen, inUse how many containers have, given
	// how many of them mustInclude has.
	free, inUse, given []int
}

func newChoice(p *pool) *choice {
	n := len(p.gpus)
	c := &choice{pool: p, open: make([]bitset, n), taken: make([]bitset, n), free: make([]int, n), inUse: make([]int, n), given: make([]int, n)}
	words := (p.mostReplicas() + 63) / 64
	backing := make(bitset, 2*n*words)
	for i := range n {
		c.open[i], backing = backing[:words:words], backing[words:]
		c.taken[i], backing = backing[:words:words], backing[words:]
	}
	return c
}

// lowest returns the n lowest-numbered replicas of GPU i that may be chosen.
func (c *choice) lowest(i, n int) []string {
	ids := make([]string, 0, n)
	for number := 0; len(ids) < n; number++ {
		if c.open[i].has(number) && !c.taken[i].has(number) {
			ids = append(ids, replicaID(c.pool.gpus[i].instanceID, number))
		}
	}
	return ids
}

// plan is one way to choose, and how good it is.
type plan struct {
	// picks is the number of replicas chosen of each GPU of the pool.
	picks []int
	// gpus is the number of different GPUs, mustInclude's among them.
	gpus int
	// load is the sum, over the replicas chosen, of how many of their GPU were in
	// use before.
	load int
	// nodes is the number of NUMA nodes. Each GPU on an unknown node counts as one.
	nodes int
}

// best returns the best plan for a request of size replicas, mustInclude's included.
func (c *choice) best(size int) (plan, error) {
	need := size
	for _, n := range c.given {
		need -= n
	}
	sets := c.candidates(need)
	if len(sets) == 0 {
		available := make([]bool, len(c.pool.gpus))
		for i := range available {
			available[i] = c.free[i]+c.given[i] > 0
		}
		return plan{}, c.pool.mixedError(available, size)
	}
	best := c.plan(sets[0], need)
	for _, set := range sets[1:] {
		// The sets are in the order of the source: on a tie the earlier one is better.
		if p := c.plan(set, need); c.compare(p, best) < 0 {
			best = p
		}
	}
	return best, nil
}

// compare is negative when a is a better plan than b.
func (c *choice) compare(a, b plan) int {
	return cmp.Or(
		-cmp.Compare(a.gpus, b.gpus),
		c.pool.terms.byUse(a.load, b.load),
		cmp.Compare(a.nodes, b.nodes),
	)
}

// candidates returns the sets of GPUs of which one provides all of need replicas: by
// rule 2 the GPUs of each driver, and otherwise, if drivers can be mixed, all GPUs.
func (c *choice) candidates(need int) [][]int {
	var drivers []driver
	sets := map[driver][]int{}
	required := map[driver]bool{}
	all := make([]int, 0, len(c.pool.gpus))
	for i, g := range c.pool.gpus {
		all = append(all, i)
		if _, ok := sets[g.driver]; !ok {
			drivers = append(drivers, g.driver)
		}
		sets[g.driver] = append(sets[g.driver], i)
		if c.given[i] > 0 {
			required[g.driver] = true
		}
	}
	var enough [][]int
	switch {
	case len(required) > 1 && !c.pool.terms.mixed:
		return nil
	case len(required) > 0:
		set := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !required[c.pool.gpus[i].driver] })
		if c.freeOf(set) >= need {
			enough = append(enough, set)
		}
	default:
		for _, d := range drivers {
			if c.freeOf(sets[d]) >= need {
				enough = append(enough, sets[d])
			}
		}
	}
	if len(enough) == 0 && (c.pool.terms.mixed || need == 0) {
		return [][]int{all}
	}
	return enough
}

func (c *choice) freeOf(set []int) (free int) {
	for _, i := range set {
		free += c.free[i]
	}
	return free
}

// plan chooses need replicas of the GPUs in set, which has enough, one at a time by
// rules 3 to 6.
func (c *choice) plan(set []int, need int) plan {
	p := plan{picks: make([]int, len(c.pool.gpus))}
	used := func(i int) int { return c.inUse[i] + c.given[i] + p.picks[i] }
	fresh := func(i int) bool { return c.given[i]+p.picks[i] == 0 }
	onNode := map[int]int{} // the number of GPUs in use by NUMA node
	count := func(i int) {
		p.gpus++
		if node := c.pool.gpus[i].numaNode; node == nil {
			p.nodes++
		} else {
			onNode[*node]++
		}
	}
	for i, given := range c.given {
		if given > 0 {
			count(i)
		}
	}
	for ; need > 0; need-- {
		var best []int // equally good but for their NUMA nodes
		for _, i := range set {
			if p.picks[i] == c.free[i] {
				continue
			}
			order := -1
			if len(best) > 0 {
				order = cmp.Or(preferTrue(fresh(i), fresh(best[0])), c.pool.terms.byUse(used(i), used(best[0])))
			}
			if order < 0 {
				best = best[:0]
			}
			if order <= 0 {
				best = append(best, i)
			}
		}
		i := best[0]
		if fresh(i) {
			i = c.nearest(best, onNode, need)
			count(i)
		}
		p.load += used(i)
		p.picks[i]++
	}
	p.nodes += len(onNode)
	return p
}

// preferTrue is negative if only a is true, and positive if only b is.
func preferTrue(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// nearest returns the GPU that keeps a choice on few NUMA nodes: one on the node with most
// GPUs in use, then on the one that provides most of need.
func (c *choice) nearest(gpus []int, onNode map[int]int, need int) int {
	available := map[int]int{}
	for _, i := range gpus {
		if node := c.pool.gpus[i].numaNode; node != nil {
			available[*node]++
		}
	}
	return slices.MinFunc(gpus, func(a, b int) int {
		nodeA, nodeB := c.pool.gpus[a].numaNode, c.pool.gpus[b].numaNode
		if nodeA == nil || nodeB == nil {
			return preferTrue(nodeA != nil, nodeB != nil)
		}
		return cmp.Or(
			-cmp.Compare(onNode[*nodeA], onNode[*nodeB]),
			-cmp.Compare(min(available[*nodeA], need), min(available[*nodeB], need)),
		)
	})
}

// bitset is a set of small numbers.
type bitset []uint64

func (b bitset) set(n int)      { b[n/64] |= 1 << (n % 64) }
func (b bitset) has(n int) bool { return b[n/64]&(1<<(n%64)) != 0 }

func (b bitset) count() (n int) {
	for _, word := range b {
		n += bits.OnesCount64(word)
	}
	return n
}
