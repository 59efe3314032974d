package advertiser

import (
	"cmp"
	"context"
	"reflect"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// configuration is a compiled configuration.
type configuration struct {
	config.Compiled
	// problem is why there is no valid configuration, so that nothing can be advertised.
	problem error
}

// initialConfiguration compiles the configuration. If it is invalid, or cannot be written, the policy
// of an earlier run stays in force. If there is no such policy, it returns the problem, with the log
// and metrics settings of the flags. It does not return the default resources, which could advertise
// GPUs that the configuration excludes.
func (d *Daemon) initialConfiguration() *configuration {
	compiled, problem := d.compiler.Apply()
	d.reportCompilation(problem)
	if problem == nil {
		return &configuration{Compiled: compiled}
	}
	flagsOnly := d.compiler
	flagsOnly.File, flagsOnly.Required = "", false
	compiled, _ = flagsOnly.Compile() // Flags have valid values.
	if durable.Exists(policy.Path(d.compiler.StateDir)) {
		last, err := policy.Read(d.compiler.StateDir)
		if err == nil {
			// The pod's probes use that of the flag.
			last.Metrics.Address = cmp.Or(compiled.Policy.Metrics.Address, last.Metrics.Address)
			return &configuration{Compiled: config.Compiled{Policy: last}}
		}
		d.log.WithError(err).Error("Cannot use the last node policy")
	}
	return &configuration{compiled, problem}
}

// reportCompilation records the result of a compilation. It logs and counts an error if it differs
// from the last.
func (d *Daemon) reportCompilation(err error) {
	if changed := d.lastCompileErr.Changed(err); err == nil {
		d.metrics.ConfigRead()
	} else if changed {
		d.metrics.ConfigRefused()
		d.log.WithError(err).WithField("config", d.compiler.File).Error("Cannot use the configuration; correct it, no restart is needed")
	}
}

// waitForNewRun returns the valid configuration that follows c and needs a new run, or nil when ctx
// ends. The log's settings apply during a run.
func (d *Daemon) waitForNewRun(ctx context.Context, c *configuration) *configuration {
	inForce := c.Compiled
	if c.problem != nil {
		inForce = config.Compiled{} // None is in force, so any valid one is a change.
	}
	for seen := ""; ; {
		var err error
		if seen, err = d.compiler.Wait(ctx, inForce.Policy.CompiledFrom.Inventory, seen); err != nil {
			return nil // ctx has ended.
		}
		next, err := d.compiler.Apply()
		d.reportCompilation(err)
		if err != nil {
			continue
		}
		inForce.Policy.CompiledFrom = next.Policy.CompiledFrom // The hashes also change with comments.
		if reflect.DeepEqual(next, inForce) {
			continue
		}
		next.Policy.Log.Configure(d.log)
		d.log.WithField("config", d.compiler.File).Info("The configuration has changed and is in force")
		d.metrics.ConfigApplied()
		if needsNewRun(inForce, next, d.compiler.NodeOS) {
			return &configuration{Compiled: next}
		}
		inForce = next
	}
}

// needsNewRun reports whether a configuration that follows another one needs a new run, in which the
// kubelet has no resource for a moment. A setting that only the NRI plugin or the shim reads needs none, and
// neither do the devices of an inventory, which are read again and again during a run.
func needsNewRun(before, after config.Compiled, nodeOS string) bool {
	for _, p := range []*policy.Policy{&before.Policy, &after.Policy} {
		p.CompiledFrom, p.Log = policy.CompiledFrom{}, policy.Log{}
		p.Standalone, p.ExtraMounts = policy.Standalone{}, policy.ExtraMounts{}
		mayInject := p.Injection == policy.InjectByKubelet || p.Injection == policy.InjectAuto && nodeOS == "windows"
		if !mayInject {
			p.RuntimeFiles, p.VisibilityHints = nil, false
		}
	}
	return !reflect.DeepEqual(before.Policy, after.Policy)
}
