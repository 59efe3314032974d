package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/metrics"
)

// unwatched returns the resources whose lists the kubelet does not watch, sorted.
func (p *Plugin) unwatched() (names []string) {
	for name, s := range p.servers {
		if s.currentStreams().open == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// isWatched reports whether the kubelet watches the list of any resource.
func (p *Plugin) isWatched() bool { return len(p.unwatched()) < len(p.servers) }

// Report sets the metrics of the current state. It may be called at any time.
func (p *Plugin) Report(n metrics.NodeMetrics) {
	isWatched := p.isWatched()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.devices {
		health := "healthy"
		if !d.Health.OK() {
			health = "unhealthy"
		}
		n.Devices.WithLabelValues(cmp.Or(string(d.Kind()), "none"), health).Inc()
	}
	for name, s := range p.servers {
		open := s.currentStreams().open
		n.Registered.WithLabelValues(name).Set(float64(min(open, 1)))
		inUse := map[string]float64{}
		for _, c := range p.containers {
			for _, id := range c.replicaIDs[name] {
				key, _, _ := allocation.ParseReplicaID(id)
				inUse[key]++
			}
		}
		pool, _ := s.current()
		for _, g := range pool.gpus {
			gpu := g.Name()
			n.Replicas.WithLabelValues(name, gpu).Set(float64(g.listed))
			if isWatched && p.containers != nil {
				n.InUse.WithLabelValues(name, gpu).Set(inUse[g.key])
			}
		}
	}
}

// maxSilence is the longest time from the beginning of one listing of GPUs to that of the next.
const maxSilence = 2 * time.Minute

// CheckAlive returns an error if the plugin hangs. It may be called at any time.
func (p *Plugin) CheckAlive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if silence := time.Since(p.listingBegan); !p.listingBegan.IsZero() && silence > maxSilence {
		return fmt.Errorf("the GPUs have not been listed for %s: restart directx-advertiser", silence.Round(time.Second))
	}
	return nil
}

// CheckReady returns an error if the kubelet does not watch the lists of all resources, or containers
// cannot be given GPUs. It may be called at any time.
func (p *Plugin) CheckReady(ctx context.Context) error {
	var err error
	if unwatched := p.unwatched(); len(unwatched) > 0 {
		err = fmt.Errorf("the kubelet does not watch %s: is it running?", strings.Join(unwatched, ", "))
	}
	if p.config.CheckStart != nil {
		err = errors.Join(err, p.config.CheckStart(ctx))
	}
	return errors.Join(err, p.config.Recorder.CheckWritable())
}
