package advertiser

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/sirupsen/logrus"

	"directx-nri/advertiser/resources"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
)

// offer is what is served of one resource.
type offer struct {
	resource string
	feed     *feed
	log      logrus.FieldLogger
}

// SocketName returns the name in the kubelet's folder of a resource's socket.
// It is short, for the whole path may have 107 bytes, and another for each
// resource.
func SocketName(resource string) string {
	switch resource {
	case ResourceDisplay:
		return "directx-display.sock"
	case ResourceCompute:
		return "directx-compute.sock"
	}
	digest := sha256.Sum256([]byte(resource))
	return "directx-" + hex.EncodeToString(digest[:5]) + ".sock"
}

// addOffer adds an offer for a resource, unless there is one: to begin with, of
// what live records name.
func (a *Advertiser) addOffer(resource string, live []allocation.LiveRecord) {
	if slices.ContainsFunc(a.offers, func(o *offer) bool { return o.resource == resource }) {
		return
	}
	// What a GPU that is not known yet will be shared as is told by the rule that
	// it comes to belong to. Too many replicas would be taken back later.
	replicas := 1
	if _, fewest, ok := a.ruleOf(resource); ok {
		replicas = fewest
	}
	o := &offer{resource: resource, log: a.config.Log.WithField("resource", resource)}
	o.feed = newFeed(newPool(resource, replicas, live, a.now()))
	a.offers = append(a.offers, o)
	a.doors.add(a.endpoint(o))
}

// ruleOf returns the terms of a resource, and the smallest number of replicas
// that a rule of it has; ok tells whether there is a rule.
func (a *Advertiser) ruleOf(resource string) (on terms, fewest int, ok bool) {
	for _, rule := range *a.applied {
		switch {
		case rule.Name != resource:
		case !ok:
			on, fewest, ok = termsOf(rule), rule.Replicas, true
		default:
			fewest = min(fewest, rule.Replicas)
		}
	}
	return on, fewest, ok
}

// change is an offer with the pool that it is to have.
type change struct {
	offer         *offer
	before, after *pool
}

// offer publishes what devices make of the pools, by the newest rules. A pool
// that the kubelet would not take stays as it was, and is an error.
//
// All pools are replaced while nothing is promised. So a GPU that leaves a pool
// gets no new holder by that, and who has it by then is in the records.
func (a *Advertiser) offer(devices []discovery.Device) error {
	rules := a.rules.Load()
	if a.applied != nil && a.applied != rules {
		a.config.Log.WithField("resources", resources.Names(*rules)).Info("the rules for resources have changed")
	}
	a.applied, a.devices = rules, devices
	assigned := resources.Assign(devices, *rules)
	a.logPassedOver(assigned)

	a.swap.Lock()
	defer a.swap.Unlock()
	records := &records{recorder: a.config.Recorder, over: a.over()}
	for _, name := range resources.Names(*rules) {
		if !slices.ContainsFunc(a.offers, func(o *offer) bool { return o.resource == name }) {
			a.addOffer(name, records.all())
		}
	}
	changes, failed := a.changes(assigned, records)
	if failed != nil {
		// What stays as it was keeps its GPUs from the others.
		records.kept = map[string]string{}
		for _, c := range changes {
			if c.after == nil {
				c.claim(records.kept)
			}
		}
		changes, _ = a.changes(assigned, records)
	}
	for _, c := range changes {
		if c.after != nil {
			c.offer.publish(c.before, c.after)
		}
	}
	a.board.saw(devices, a.offers)
	return failed
}

// claim notes the GPUs that c's pool offers, by folded instance ID.
func (c change) claim(of map[string]string) {
	for _, g := range c.before.gpus {
		if !g.missing() && g.heldAs == "" {
			of[foldID(g.instanceID)] = c.before.resource
		}
	}
}

// changes returns what the offers are to have: no new pool where the kubelet
// would not take it, which is an error.
func (a *Advertiser) changes(assigned []resources.Assigned, records *records) ([]change, error) {
	shares := map[string][]share{}
	for _, d := range assigned {
		if d.Rule != nil {
			shares[d.Rule.Name] = append(shares[d.Rule.Name], share{device: d.Device, replicas: d.Rule.Replicas})
		}
	}
	var changes []change
	var failed error
	for _, o := range a.offers {
		before, _ := o.feed.current()
		on, _, ok := a.ruleOf(o.resource)
		if !ok {
			on = before.terms
		}
		mine := shares[o.resource]
		known := before.folded()
		for i := range mine {
			mine[i].heldAs = records.heldAs(mine[i].device.InstanceID, o.resource, known)
		}
		after := before.renew(mine, on, a.now())
		if _, err := after.size(); err != nil {
			failed = errors.Join(failed, err)
			after = nil
		}
		changes = append(changes, change{offer: o, before: before, after: after})
	}
	return changes, failed
}

// forget takes out of the pools what nothing holds any more, and takes back the
// offers without a rule that have nothing left. It looks at pods also when
// there is nothing to forget: see [podWatch].
func (a *Advertiser) forget(ctx context.Context) error {
	live, err := a.config.Recorder.Live()
	if a.reading.changes(err) && err != nil {
		a.config.Log.WithError(err).Warn("cannot tell which GPUs are held, so none is forgotten")
	}
	if err != nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, a.timing.pods)
	defer cancel()
	a.gone, err = a.pods.gone(asking, live)
	if err != nil {
		a.config.Log.WithError(err).Debug("cannot tell which pods are gone, so all replicas that are recorded count as held")
	}
	for _, o := range slices.Clone(a.offers) {
		_, _, wanted := a.ruleOf(o.resource)
		before, _ := o.feed.current()
		if before.leftovers() {
			records := live
			if !wanted {
				// The whole list goes, and the kubelet looks nothing up in it then.
				records = slices.DeleteFunc(slices.Clone(live), a.over())
			}
			o.publish(before, before.prune(heldReplicas(records, o.resource, a.gone), a.now(), a.timing.patience))
		}
		if after, _ := o.feed.current(); !wanted && len(after.gpus) == 0 {
			o.log.Info("the resource is taken back, for no rule names it and nothing is held by it")
			a.offers = slices.DeleteFunc(a.offers, func(other *offer) bool { return other == o })
			a.doors.remove(SocketName(o.resource))
			a.board.saw(a.devices, a.offers)
		}
	}
	return nil
}

// publish makes after what o offers, and logs what is new about it.
func (o *offer) publish(before, after *pool) {
	o.feed.publish(after)
	for _, g := range after.gpus {
		log := o.log.WithFields(logrus.Fields{"gpu": g.name, "instanceID": g.instanceID})
		i, known := before.index[g.instanceID]
		switch {
		case known && before.gpus[i].fault == g.fault && (!g.usable() || before.gpus[i].replicas == g.replicas):
		case g.usable():
			log.WithField("replicas", g.replicas).Info("GPU is offered")
		default:
			log.WithField("fault", g.fault).Warn("GPU cannot be allocated")
		}
	}
	for _, g := range before.gpus {
		if _, known := after.index[g.instanceID]; !known {
			o.log.WithFields(logrus.Fields{"gpu": g.name, "instanceID": g.instanceID}).Info("GPU is forgotten, for nothing holds it any more")
		}
	}
}
