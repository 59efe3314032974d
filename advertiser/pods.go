package advertiser

import (
	"context"
	"errors"
	"fmt"

	"directx-nri/internal/allocation"
	"directx-nri/internal/localgrpc"
)

// podWatch finds out which pods are gone, by asking the kubelet for those that
// it has.
//
// That the kubelet does not list a pod proves nothing by itself: after a
// restart it lists no pod of the API server's before it has reached that, and
// still looks up in our list what its checkpoint says they hold (GetTopologyHints
// in pkg/kubelet/cm/devicemanager, v1.34). So a pod is gone only when the same
// run of the kubelet has listed it before. One that was deleted while no
// kubelet ran, or lived shorter than from one question to the next, is never
// found to be gone; what it held stays listed as Unhealthy, which is harmless.
type podWatch struct {
	// list is [Config.Pods]; nil when nobody can be asked.
	list func(ctx context.Context) (map[string]bool, error)
	// running tells which run of the kubelet there is now.
	running func() (kubeletRun, error)

	// seen are the UIDs of the pods that run has listed.
	run  kubeletRun
	seen map[string]bool
}

// kubeletRun tells one run of the kubelet from the next.
type kubeletRun struct {
	// socket is its registration socket. It is made late in a start: the
	// kubelet may list pods while the file of its last run is still there.
	socket localgrpc.Identity
	// streamsEnded is how many ListAndWatch streams have ended. Those of a run
	// last as long as it and its registration do.
	streamsEnded int64
}

func (k kubeletRun) same(other kubeletRun) bool {
	return k.socket.Same(other.socket) && k.streamsEnded == other.streamsEnded
}

// gone returns the UIDs of those pods of live records that are gone for
// certain. To be found gone later, a pod must be there at a call before. Upon
// an error nothing is known.
func (w *podWatch) gone(ctx context.Context, live []allocation.LiveRecord) (map[string]bool, error) {
	pods := boundPods(live)
	if w.list == nil || len(pods) == 0 {
		return nil, nil
	}
	before, err := w.running()
	if err != nil {
		return nil, fmt.Errorf("see whether the kubelet was restarted: %w", err)
	}
	listed, err := w.list(ctx)
	if err != nil {
		return nil, err
	}
	after, err := w.running()
	switch {
	case err != nil:
		return nil, fmt.Errorf("see whether the kubelet was restarted: %w", err)
	case !after.same(before):
		return nil, errors.New("the kubelet was restarted while it was asked for its pods")
	case !before.same(w.run):
		w.run, w.seen = before, nil
	}
	seen, gone := map[string]bool{}, map[string]bool{}
	for uid, name := range pods {
		seen[uid] = w.seen[uid] || listed[name]
		gone[uid] = w.seen[uid] && !listed[name]
	}
	w.seen = seen
	return gone, nil
}

// boundPods returns the pods that records are bound to, as "namespace/name" by
// UID: a pod that was made anew has its name, but not its UID.
func boundPods(live []allocation.LiveRecord) map[string]string {
	pods := map[string]string{}
	for _, record := range live {
		if h := record.Holder; h != nil && h.PodNamespace != "" && h.PodName != "" {
			pods[h.PodUID] = h.PodNamespace + "/" + h.PodName
		}
	}
	return pods
}
