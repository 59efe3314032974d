package decision

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/hostfiles"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec"
)

// storeFiles has every file of the driver store but other.exe, which another GPU's has.
type storeFiles struct{ hostfiles.Assumed }

func (storeFiles) Resolve(path string) (string, bool, error) {
	if other := `C:\second`; !winpath.Within(`C:\store`, path) && !winpath.Within(other, path) || winpath.Base(path) == "other.exe" && winpath.Dir(path) != other {
		return "", false, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return path, true, nil
}

func permissive() policy.Policy {
	return policy.Policy{ExtraMounts: policy.ExtraMounts{Sources: policy.MountDriverStore, Configured: true, Max: 3}, VisibilityHints: true}
}

// mounted returns the destinations of the mounts that are no driver's own.
func mounted(edits ocispec.Edits) []string {
	var list []string
	for _, m := range edits.Mounts {
		if !strings.Contains(m.Source, "PCIROOT") {
			list = append(list, winpath.Base(m.Destination))
		}
	}
	return list
}

func TestPodsRequestExtraMounts(t *testing.T) {
	t.Parallel()
	const forAll, forMain, forOther = ExtraMountsAnnotation, ExtraMountsAnnotation + ".main", ExtraMountsAnnotation + ".other"
	for name, test := range map[string]struct {
		pod, own map[string]string
		env      []string
		want     []string
		refused  []string // parts of the error
	}{
		"nothing":                         {},
		"for all containers":              {pod: map[string]string{forAll: "a.exe"}, want: []string{"a.exe"}},
		"for this one":                    {pod: map[string]string{forMain: "a.exe"}, want: []string{"a.exe"}},
		"for another":                     {pod: map[string]string{forOther: "a.exe"}},
		"both add up":                     {pod: map[string]string{forMain: "b.exe", forAll: "a.exe"}, want: []string{"a.exe", "b.exe"}},
		"as the shim sees them":           {own: map[string]string{forAll: "a.exe", forMain: "b.exe"}, want: []string{"a.exe", "b.exe"}},
		"in both places, once":            {pod: map[string]string{forAll: "a.exe"}, own: map[string]string{forAll: "a.exe"}, want: []string{"a.exe"}},
		"the variable has no effect":      {env: []string{ExtraMountsVariable + "=a.exe"}},
		"the variable changes nothing":    {env: []string{ExtraMountsVariable + "=["}},
		"together more than the most":     {pod: map[string]string{forAll: "a\nb", forMain: "c\nd"}, refused: []string{"too many files", forMain}},
		"cannot be read":                  {pod: map[string]string{forMain: "["}, refused: []string{"not a list of files", "annotation " + forMain}},
		"another container's is not ours": {pod: map[string]string{forOther: "["}},
		"in another GPU's driver store":   {pod: map[string]string{forAll: "other.exe"}, refused: []string{"no such file", "other.exe"}},
		"out of the driver store":         {pod: map[string]string{forAll: `..\x`}, refused: []string{"are not allowed in a path", forAll}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			devices := testDevices()
			devices[1].DriverStorePath = `C:\second`
			d, tokens := recorded(t, discovery.Static(devices), map[string][]string{display: {devices[0].InstanceID}})
			d.Files, d.Policy = storeFiles{}, permissive()
			c := ofPod(append(test.env, "DIRECTX_ALLOCATION_DISPLAY="+tokens[display])...)
			c.PodAnnotations, c.Annotations = test.pod, test.own
			edits, ok, err := d.Decide(t.Context(), read(c))
			_, bound, checkErr := d.Store.Check(allocation.Token(tokens[display]), allocation.Holder{PodUID: "u", Container: "main"})
			if checkErr != nil || bound != (test.refused == nil) {
				t.Errorf("the allocation is bound: %t, error %v", bound, checkErr)
			}
			if test.refused != nil {
				for _, part := range append(test.refused, `container "main" of pod n/p`) {
					if ReasonOf(err) != ReasonPolicy || !strings.Contains(err.Error(), part) {
						t.Errorf("reason %q: %v, want %q", ReasonOf(err), err, part)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := mounted(edits); !ok || !slices.Equal(got, test.want) {
				t.Errorf("it gets %v, want %v", got, test.want)
			}
		})
	}
}

// Outside Kubernetes, the annotation takes precedence over the variable.
func TestStandaloneRequestsExtraMounts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		annotation string
		want       []string
	}{"variable": {"", []string{"a.exe"}}, "annotation": {"b.exe", []string{"b.exe"}}} {
		d := decider()
		d.Files, d.Policy = storeFiles{}, permissive()
		c := Container{OS: ocispec.Windows, ID: "c1", Env: []string{VisibleVariable + "=0", ExtraMountsVariable + "=a.exe"}}
		if test.annotation != "" {
			c.Annotations = map[string]string{ExtraMountsAnnotation: test.annotation}
		}
		edits, _, err := d.Decide(t.Context(), read(c))
		if got := mounted(edits); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v, error %v", name, got, test.want, err)
		}
	}
}

func TestByClass(t *testing.T) {
	t.Parallel()
	devices := testDevices()
	hidden := windowsGPU("", 0xC0)
	hidden.InstanceID = `VMBUS\GPU`
	hidden.Health = discovery.Health{Reason: "it has no location path", ByPathOnly: true}
	devices = append(devices, hidden)
	d, tokens := recorded(t, discovery.Static(devices), map[string][]string{display: {hidden.InstanceID, devices[0].InstanceID}})
	c := ofPod("DIRECTX_ALLOCATION_DISPLAY=" + tokens[display])
	if _, _, err := d.Decide(t.Context(), read(c)); !errors.Is(err, errDeviceFailed) {
		t.Errorf("by location path: %v", err)
	}
	d.Policy.Assignment = policy.AssignByClass
	d.Source = discovery.ForPolicy(d.Source, d.Policy)
	class := []specs.WindowsDevice{{ID: ocispec.DisplayClass, IDType: ocispec.IDTypeClass}}
	edits, _, err := d.Decide(t.Context(), read(c))
	if _, files := gpusOf(edits); err != nil || !slices.Equal(edits.WindowsDevices, class) || !slices.Equal(files, []string{"", path0}) {
		t.Errorf("%v, files %v, error %v", edits.WindowsDevices, files, err)
	}
	// Standalone runs are given their GPUs in the same way.
	alone := decider(devices...)
	alone.Policy.Assignment = policy.AssignByClass
	alone.Source = discovery.ForPolicy(alone.Source, alone.Policy)
	edits, _, err = alone.Decide(context.Background(), read(Container{OS: ocispec.Windows, ID: "c1", Env: []string{VisibleVariable + `=VMBUS\GPU`}}))
	if err != nil || !slices.Equal(edits.WindowsDevices, class) {
		t.Errorf("standalone: %v, error %v", edits.WindowsDevices, err)
	}
}
