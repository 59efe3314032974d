package main

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"directx-nri/advertiser"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/metrics"
	"directx-nri/internal/policy"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// serving is who gives containers their GPUs, as the advertiser needs to know.
type serving struct {
	source   discovery.Source
	recorder advertiser.Recorder
	ready    func(context.Context, advertiser.Start) error
	inject   advertiser.Inject
	// there returns nil when whoever it is can give GPUs now.
	there func(context.Context) error
	// run are goroutines that it takes.
	run []func(context.Context) error
	// injector is nil where Allocate answers with tokens.
	injector *injector
	close    func()

	byClass *atomic.Bool
	metrics *metrics.Metrics
	log     *logrus.Logger
}

// newServing returns who gives containers their GPUs by the configuration c.
func newServing(c config.Config, source discovery.Source, recorder *allocation.Recorder, m *metrics.Metrics, log *logrus.Logger) (*serving, error) {
	s := &serving{recorder: recorder, close: func() {}, byClass: &atomic.Bool{}, metrics: m, log: log}
	s.source = discovery.ByClass(source, s.byClass.Load)
	m.SetInjection(string(c.Injection))
	switch {
	case c.Injection == config.InjectByKubelet:
		if err := s.byKubelet(c, source, recorder); err != nil {
			return nil, err
		}
	case c.ServedBy == config.ServedByShim:
		gate, err := newShimGate(c.Containerd.CRISocket, c.Kubelet.PodResources)
		if err != nil {
			return nil, err
		}
		s.source, s.ready, s.close = &gatedSource{Source: s.source, gate: gate.Routes, log: log}, gate.Ready, gate.Close
		s.there = func(ctx context.Context) error {
			_, err := gate.Routes(ctx)
			return err
		}
	default:
		s.byPlugin(c)
	}
	s.configure(c)
	if s.injector != nil {
		s.injector.tellLimits()
	}
	return s, nil
}

// byPlugin has the NRI plugin give containers their GPUs.
func (s *serving) byPlugin(c config.Config) {
	s.ready = pluginReady(c)
	s.there = func(ctx context.Context) error { return s.ready(ctx, advertiser.Start{}) }
}

// byKubelet has the answers to the kubelet give containers their GPUs.
func (s *serving) byKubelet(c config.Config, source discovery.Source, recorder *allocation.Recorder) error {
	os, err := ocispec.ParseOS(c.ContainerOS)
	if err != nil {
		return err
	}
	s.injector = &injector{source: source, files: hostfiles.Root(c.HostRoot), os: os, log: s.log}
	s.recorder = allocation.Injected{Recorder: recorder}
	s.ready, s.inject = s.injector.Ready, s.injector.Inject
	s.there = func(context.Context) error { return nil }
	attributor := &advertiser.Attributor{Recorder: recorder, PodResources: c.Kubelet.PodResources, Log: s.log}
	s.run = append(s.run, attributor.Run)
	return nil
}

// configure has what may change at any time be as now says.
func (s *serving) configure(now config.Config) {
	assignment := capabilities.Resolve(policy.Assignment(now.Assignment), now.ContainerOS, capabilities.Ask)
	s.log.WithFields(logrus.Fields{"mode": assignment.Mode(), "reason": assignment.Reason}).Info("how containers are given devices")
	s.metrics.SetAssignment(string(assignment.Mode()), assignment.Reason)
	s.byClass.Store(!assignment.Individual)
	if s.injector != nil {
		p := decision.PolicyOf(now.Policy(), !assignment.Individual)
		s.injector.policy.Store(&p)
	}
}

// over says which advertiser this is for. It is called before that runs.
func (s *serving) over(device *advertiser.Advertiser, c config.Config) {
	if s.injector != nil {
		s.injector.held = advertiser.PodResourcesTogether(c.Kubelet.PodResources, func(resource string) bool {
			return slices.ContainsFunc(device.Status().Resources, func(r advertiser.ResourceStatus) bool { return r.Name == resource })
		})
		s.injector.several = func() bool { return severalOffered(device.Status()) }
	}
}

// severalOffered tells whether more than one resource has GPUs. Ones that cannot
// be given now count too: that may be over before the container asks for the next.
func severalOffered(status advertiser.Status) bool {
	return len(slices.DeleteFunc(status.Resources, func(r advertiser.ResourceStatus) bool { return len(r.GPUs) == 0 })) > 1
}
