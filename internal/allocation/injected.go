package allocation

import (
	"fmt"
	"slices"
	"strings"
)

// Attribute binds an injected record to the container that the kubelet names as
// its holder. The kubelet names no UID, so the pod's name stands for it: a pod
// that is recreated under the same name counts as the same. Its errors are those
// of [Store.Bind].
func (r *Recorder) Attribute(id ID, namespace, pod, container string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.byID[id]
	if !ok || !e.record.Injected {
		return fmt.Errorf("attribute allocation %s: %w", id, ErrNotFound)
	}
	holder := Holder{PodUID: nameInPlace + namespace + "/" + pod, Container: container, PodNamespace: namespace, PodName: pod}
	bound, err := r.store.bind(id, holder)
	switch {
	case err != nil:
		return fmt.Errorf("attribute allocation %s: %w", id, err)
	case !bound.Same(holder):
		return fmt.Errorf("attribute allocation %s: %w: %s", id, ErrHeld, bound)
	}
	e.holder = &bound
	return nil
}

// handedOn reports whether each of e's replicas is in a later injected record. Some are
// not enough: a main container may have a part of its init container's replicas.
func (r *Recorder) handedOn(e *entry) bool {
	for _, key := range replicaKeys(e.record) {
		if !slices.ContainsFunc(r.byReplica[key], func(later *entry) bool {
			return later.record.Injected && later.record.Sequence > e.record.Sequence
		}) {
			return false
		}
	}
	return true
}

// nameInPlace is the prefix of a UID that stands for the pod's name.
const nameInPlace = "name:"

// NameOnly reports whether the UID is not known and the pod's name stands for it.
func (h Holder) NameOnly() bool { return strings.HasPrefix(h.PodUID, nameInPlace) }
