package decision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/ocispec"
)

// token is an environment variable that presents an allocation's token.
type token struct {
	variable string
	value    string
}

// tokenEnv returns the environment variables of c that present tokens, sorted: a container
// with such a variable gets what it stands for or is refused. In a pod, a value that is no
// token is one only where the advertiser's annotation requires it. The kubelet sets others
// for a Service that is named so, in each container of its namespace.
func tokenEnv(c Container) []token {
	var tokens []token
	for _, variable := range c.Env {
		name, value, _ := strings.Cut(variable, "=")
		// Windows ignores the case of names. Letters outside ASCII that Go considers
		// equal to ASCII ones are different to Windows.
		if c.OS == ocispec.Windows && hasPrefixFold(name, allocation.EnvPrefix) {
			name = strings.ToUpper(name)
		}
		if !strings.HasPrefix(name, allocation.EnvPrefix) {
			continue
		}
		if _, err := allocation.ParseToken(value); err == nil || c.Pod == nil || isAnnotated(c.Annotations, name) {
			tokens = append(tokens, token{name, value})
		}
	}
	slices.SortFunc(tokens, func(a, b token) int {
		return cmp.Or(cmp.Compare(a.variable, b.variable), cmp.Compare(a.value, b.value))
	})
	return slices.Compact(tokens)
}

// isAnnotated reports whether a container's annotations have the allocation that belongs
// in variable.
func isAnnotated(annotations map[string]string, variable string) bool {
	for key := range annotations {
		if resource, ok := strings.CutPrefix(key, allocation.AnnotationPrefix+"."); ok && allocation.EnvKey(resource) == variable {
			return true
		}
	}
	return false
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// overriddenTokens returns the tokens of a container's annotations that none of
// its variables presents. The advertiser sets both; a variable of the pod
// replaces the advertiser's.
func overriddenTokens(annotations map[string]string, presented []token) []allocation.Token {
	var overridden []allocation.Token
	for key, value := range annotations {
		if !strings.HasPrefix(key, allocation.AnnotationPrefix+".") {
			continue
		}
		parsed, err := allocation.ParseToken(value)
		if err == nil && !slices.ContainsFunc(presented, func(t token) bool { return t.value == value }) {
			overridden = append(overridden, parsed)
		}
	}
	slices.Sort(overridden)
	return overridden
}

// decidePod decides for a container of a pod.
func (d *Decider) decidePod(ctx context.Context, c Container) (Outcome, bool, error) {
	tokens := tokenEnv(c)
	if err := d.checkOverridden(c, tokens); err != nil {
		return Outcome{}, false, err
	}
	if len(tokens) == 0 {
		return Outcome{}, false, nil
	}
	if c.HyperV {
		return Outcome{}, false, explain("", errHyperV)
	}
	if c.CheckHandler != nil {
		if err := c.CheckHandler(ctx); err != nil {
			return Outcome{}, false, WithReason(ReasonHandler, fmt.Errorf("%w; use a runtime class with a handler of runc, or none", err))
		}
	}
	holder := allocation.Holder{PodUID: c.Pod.UID, Container: c.Name, PodNamespace: c.Pod.Namespace, PodName: c.Pod.Name}
	if holder.PodUID == "" || holder.Container == "" {
		return Outcome{}, false, errors.New("the container runtime reports no pod UID or container name, so no allocation can be bound to the container")
	}
	records, unbound, err := d.resolveRecords(tokens, holder)
	if err != nil {
		return Outcome{}, false, err
	}
	devices, err := d.recordedDevices(ctx, records)
	if err != nil {
		return Outcome{}, false, err
	}
	outcome, err := d.buildOutcome(c, devices)
	if err != nil {
		return Outcome{}, false, err
	}
	removeInterlock(c.OS, &outcome.Edits)
	outcome.holder, outcome.unbound = holder, unbound
	return outcome, true, nil
}

// removeInterlock makes edits remove the interlock of the advertiser's answer, so
// that the runtime starts the container.
func removeInterlock(os ocispec.OS, edits *ocispec.Edits) {
	if os == ocispec.Windows {
		edits.RemoveWindowsDevices = []specs.WindowsDevice{{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType}}
	} else {
		edits.RemoveMounts = []string{allocation.InterlockMount}
	}
}

// checkOverridden refuses a container whose own variables override the token of
// an allocation: it would start without the GPU that it requested. An annotation
// without a record is not ours.
func (d *Decider) checkOverridden(c Container, presented []token) error {
	for _, overridden := range overriddenTokens(c.Annotations, presented) {
		record, err := d.Store.Get(overridden)
		switch {
		case errors.Is(err, allocation.ErrNotFound):
		case err != nil:
			return explain("", err)
		default:
			return explain(record.Resource, fmt.Errorf("%w %s", errOverridden, allocation.EnvKey(record.Resource)))
		}
	}
	return nil
}

// resolveRecords returns the records of tokens, and those of the tokens that are
// not bound to a container yet. Nothing is bound before all are checked, so that
// a refused container takes nothing from another one.
func (d *Decider) resolveRecords(tokens []token, holder allocation.Holder) (records []allocation.Record, unbound []token, err error) {
	for _, t := range tokens {
		parsed, err := allocation.ParseToken(t.value)
		if err != nil {
			return nil, nil, explain(t.variable, err)
		}
		record, bound, err := d.Store.Check(parsed, holder)
		if want := allocation.EnvKey(record.Resource); err == nil && want != t.variable {
			err = fmt.Errorf("%w: it belongs in %s", ErrWrongVariable, want)
		}
		if err != nil {
			return nil, nil, explain(t.variable, err)
		}
		if !bound {
			unbound = append(unbound, t)
		}
		records = append(records, record)
	}
	return records, unbound, nil
}

// recordedDevices returns the devices of records.
func (d *Decider) recordedDevices(ctx context.Context, records []allocation.Record) ([]discovery.Device, error) {
	var resources, ids []string
	var recorded []discovery.Device
	for _, record := range records {
		resources = append(resources, record.Resource)
		for _, replica := range record.Replicas {
			if !discovery.ContainsID(ids, replica.InstanceID) {
				ids = append(ids, replica.InstanceID)
			}
			if replica.UUID != "" {
				recorded = append(recorded, discovery.Device{InstanceID: replica.InstanceID, UUID: replica.UUID})
			}
		}
	}
	devices, err := Lookup(ctx, d.Source, d.Policy.ByClass(), ids)
	if err != nil {
		return nil, explain(strings.Join(resources, ", "), err)
	}
	for i := range devices { // A lookup of single devices does not ask their drivers.
		known, _ := discovery.Find(recorded, devices[i].InstanceID)
		devices[i].UUID = cmp.Or(devices[i].UUID, known.UUID)
	}
	return devices, nil
}
