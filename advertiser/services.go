package advertiser

import (
	"context"
	"fmt"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Services returns what the kubelet is served behind each resource's socket, by
// resource, for the GPUs that the source lists now. It is for whoever plays the
// kubelet in the same process, without sockets. It may be called once, and not
// beside [Advertiser.Run].
//
// ListAndWatch answers once, and then waits until its stream's context ends.
func (a *Advertiser) Services(ctx context.Context) (map[string]v1beta1.DevicePluginServer, error) {
	if err := a.begin(ctx); err != nil {
		return nil, fmt.Errorf("offer GPUs: %w", err)
	}
	if a.listing != "" {
		return nil, fmt.Errorf("list GPUs: %s", a.listing)
	}
	services := map[string]v1beta1.DevicePluginServer{}
	for _, o := range a.offers {
		services[o.resource] = a.service(o, nil, newWatchers())
	}
	return services, nil
}

// service returns the service of o for a server whose streams must end when
// stopping is closed.
func (a *Advertiser) service(o *offer, stopping <-chan struct{}, w *watchers) *service {
	return &service{
		feed:     o.feed,
		swap:     &a.swap,
		recorder: a.config.Recorder,
		ready:    a.config.Ready,
		inject:   a.config.Inject,
		windows:  a.config.Windows,
		observer: orNobody(a.config.Observer),
		board:    &a.board,
		log:      o.log,
		stopping: stopping,
		watchers: w,
		trim:     a.trim,
		ended:    &a.streamsEnded,
	}
}
