package decision

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// recorded returns a decider over source whose store has records, and their IDs by resource.
func recorded(t *testing.T, source discovery.Source, records map[string][]string) (*Decider, map[string]allocation.ID) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "allocations")
	ids := map[string]allocation.ID{}
	for resource, instances := range records {
		ids[resource] = allocationtest.Record(t, dir, resource, instances...)
	}
	return &Decider{Source: source, Store: allocation.OpenStore(dir), Files: hostfiles.Assumed{}, Log: testutil.Quiet()}, ids
}

const (
	display = "directx.microsoft.com/display"
	compute = "directx.microsoft.com/compute"
)

// ofPod returns a container that was allocated what the records have.
func ofPod(records map[string]allocation.ID) Container {
	annotations := map[string]string{}
	for resource, id := range records {
		annotations[allocation.AnnotationKey(resource)] = string(id)
	}
	return Container{OS: "windows", Pod: &Pod{UID: "u", Namespace: "n", Name: "p"}, Name: "main", Annotations: annotations, Interlock: true}
}

// For a container of a pod, only its own GPUs are looked up.
func TestPodsOwnDevicesAreLookedUp(t *testing.T) {
	t.Parallel()
	devices := testDevices()
	source := &source{Static: devices}
	d, ids := recorded(t, source, map[string][]string{
		display: {devices[1].InstanceID, devices[0].InstanceID, strings.ToLower(devices[1].InstanceID)}, compute: {devices[0].InstanceID},
	})
	edits, ok, err := decide(t.Context(), d, read(ofPod(ids)))
	if err != nil || !ok {
		t.Fatalf("ok %t, error %v", ok, err)
	}
	if got, _ := gpusOf(edits); !slices.Equal(got, []string{path0, path1}) {
		t.Errorf("it gets %v", got)
	}
	interlock := []specs.WindowsDevice{{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType}}
	if !slices.Equal(edits.RemoveWindowsDevices, interlock) {
		t.Errorf("the interlock is not removed: %v", edits.RemoveWindowsDevices)
	}
	if diff := cmp.Diff([][]string{{devices[0].InstanceID, devices[1].InstanceID}}, source.found); diff != "" {
		t.Errorf("looked for (-want +got):\n%s", diff)
	}
}

func TestUnusableDevicesOfPods(t *testing.T) {
	t.Parallel()
	devices := testDevices()
	for _, id := range []string{`ROOT\DISPLAY\0`, `ROOT\SOFTWARE\0`} {
		d := windowsGPU("PCIROOT(0)#PCI(0300)", 0xFB)
		d.InstanceID, d.Software, d.SupportsDisplay, d.SupportsCompute = id, strings.Contains(id, "SOFTWARE"), false, false
		devices = append(devices, d)
	}
	devices = append(devices, discovery.Device{InstanceID: `ROOT\1`, SupportsDisplay: true})
	for name, test := range map[string]struct {
		id        string
		err, want error
		says      string
	}{
		"gone":              {id: `PCI\GONE`, want: discovery.ErrGone, says: `PCI\GONE`},
		"failed":            {id: devices[2].InstanceID, want: discovery.ErrUnusable, says: "code 10"},
		"no GPU any more":   {id: `ROOT\DISPLAY\0`, want: discovery.ErrUnusable, says: "neither graphics nor compute"},
		"software":          {id: `ROOT\SOFTWARE\0`, want: discovery.ErrUnusable, says: "software renderer"},
		"not assignable":    {id: `ROOT\1`, want: gpuedits.ErrNotAssignable, says: "dxctl doctor"},
		"cannot look it up": {id: devices[0].InstanceID, err: errors.New("access is denied"), want: discovery.ErrUnknown, says: "access is denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, ids := recorded(t, &source{Static: devices, err: test.err}, map[string][]string{display: {test.id}})
			edits, _, err := decide(t.Context(), d, read(ofPod(ids)))
			testutil.CheckError(t, "decide", err, test.says)
			if !errors.Is(err, test.want) {
				t.Errorf("%+v, error %v, want %v", edits, err, test.want)
			}
			// The allocation stays unbound.
			if _, err := d.Store.GetFor(ids[display], allocation.Holder{PodUID: "other", Container: "main"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// decide decides about a container and binds its allocations, and reports whether it starts with the edits.
func decide(ctx context.Context, d *Decider, request Request) (edits ocispec.Edits, ok bool, err error) {
	outcome, err := d.Decide(ctx, request)
	if err == nil {
		err = d.Bind(ctx, request, outcome)
	}
	if err != nil {
		_, err = request.Container.Refuse(err)
		return ocispec.Edits{}, false, err
	}
	return outcome.Edits, outcome.UnchangedReason == "", nil
}

// A decision has no effects. Binding is the last step.
func TestDecideBindsNothing(t *testing.T) {
	t.Parallel()
	devices := testDevices()
	d, ids := recorded(t, discovery.Static(devices), map[string][]string{display: {devices[0].InstanceID}})
	log, logged := logtest.NewNullLogger()
	d.Log = log
	request := read(ofPod(ids))
	outcome, err := d.Decide(t.Context(), request)
	if err != nil || len(outcome.Devices) != 1 || outcome.Devices[0].InstanceID != devices[0].InstanceID {
		t.Fatalf("%+v, error %v", outcome, err)
	}
	if _, err := d.Store.GetFor(ids[display], allocation.Holder{}); err != nil {
		t.Errorf("it is bound: %v", err)
	}
	if entry := logged.LastEntry(); entry != nil {
		t.Errorf("logged %v", entry)
	}

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Bind(canceled, request, outcome); !errors.Is(err, context.Canceled) {
		t.Errorf("bound after the call was canceled: %v", err)
	}
	testutil.NoError(t, d.Bind(t.Context(), request, outcome))
	want := allocation.Holder{PodUID: "u", Container: "main", PodNamespace: "n", PodName: "p"}
	if entries, _, err := d.Store.List(t.Context()); err != nil || len(entries) != 1 || !cmp.Equal(entries[0].Holder, &want) {
		t.Errorf("the records are %+v, error %v", entries, err)
	}
	if entry := logged.LastEntry(); entry == nil || !cmp.Equal(entry.Data["gpus"], []string{path0}) {
		t.Errorf("the outcome is not logged: %v", entry)
	}
	another := ofPod(ids)
	another.Name = "another"
	if err := d.Bind(t.Context(), read(another), outcome); !errors.Is(err, allocation.ErrHeld) {
		t.Errorf("bound meanwhile to another container: %v", err)
	}
	if _, err := d.Decide(t.Context(), read(another)); !errors.Is(err, allocation.ErrHeld) {
		t.Errorf("another container: %v", err)
	}
}

// An allocation is presented by an annotation of the container, and by nothing else.
func TestPodsThatAreRefused(t *testing.T) {
	t.Parallel()
	d, ids := recorded(t, discovery.Static(testDevices()), map[string][]string{display: {testDevices()[0].InstanceID}})
	key := allocation.AnnotationKey(display)
	for name, test := range map[string]struct {
		change func(*Container)
		want   error
	}{
		"made-up ID":          {func(c *Container) { c.Annotations = map[string]string{key: string(allocation.NewID())} }, allocation.ErrNotFound},
		"isolated by Hyper-V": {func(c *Container) { c.HyperV = true }, errHyperV},
		"no pod UID":          {func(c *Container) { c.Pod.UID = "" }, nil},
		"no container name":   {func(c *Container) { c.Name = "" }, nil},
		"a path":              {func(c *Container) { c.Annotations = map[string]string{key: "../../etc/passwd"} }, allocation.ErrMalformedID},
		"no ID":               {func(c *Container) { c.Annotations = nil }, errNoAllocation},
		"ID in an environment variable": {func(c *Container) {
			c.Annotations, c.Env = nil, []string{"DIRECTX_ALLOCATION_DISPLAY=" + string(ids[display])}
		}, errNoAllocation},
		"the pod's annotation":                 {func(c *Container) { c.Annotations, c.PodAnnotations = nil, c.Annotations }, errForged},
		"the pod's annotation, no interlock":   {func(c *Container) { c.Interlock, c.PodAnnotations = false, c.Annotations }, errForged},
		"the pod's annotation, copied to it":   {func(c *Container) { c.PodAnnotations = c.Annotations }, errForged},
		"the pod's annotation for another one": {func(c *Container) { c.PodAnnotations = map[string]string{key + ".x": ""} }, errForged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := ofPod(ids)
			test.change(&c)
			if _, ok, err := decide(t.Context(), d, read(c)); ok || err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("ok %t, error %v, want %v", ok, err, test.want)
			}
			if _, err := d.Store.GetFor(ids[display], allocation.Holder{PodUID: "other", Container: "main"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A lookup of single devices does not query their drivers.
func TestUUIDsOfRecords(t *testing.T) {
	t.Parallel()
	devices := testDevices()
	devices[1].UUID = "GPU-b"
	got, err := discovery.Allocated(t.Context(), discovery.Static(devices), []allocation.Replica{
		{InstanceID: devices[0].InstanceID, UUID: "GPU-a"}, {InstanceID: devices[1].InstanceID, UUID: "GPU-old"},
	})
	if err != nil || len(got) != 2 || got[0].UUID != "GPU-a" || got[1].UUID != "GPU-b" {
		t.Errorf("%+v, error %v", got, err)
	}
}

// storeFiles has every file of the driver store but other.exe, which another GPU's has.
type storeFiles struct{ hostfiles.Assumed }

func (storeFiles) Resolve(path string) (string, bool, error) {
	if other := `C:\second`; !winpath.EqualOrBelow(`C:\store`, path) && !winpath.EqualOrBelow(other, path) || winpath.Base(path) == "other.exe" && winpath.Dir(path) != other {
		return "", false, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return path, true, nil
}

func permissive() policy.Resolved {
	return policy.Resolved{Policy: policy.Policy{
		Standalone:      policy.Standalone{Environment: true},
		ExtraMounts:     policy.ExtraMounts{Sources: policy.MountSourcesDriverStore, Max: 3},
		VisibilityHints: true,
	}}
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

// brokenFiles cannot be read.
type brokenFiles struct{ storeFiles }

func (brokenFiles) Resolve(path string) (string, bool, error) {
	return "", false, &fs.PathError{Op: "open", Path: path, Err: fs.ErrInvalid}
}

// The pod is not the cause of a disk that fails.
func TestExtraMountsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	device := testDevices()[0]
	device.DriverStorePath, device.System32, device.SysWOW64 = `C:\store`, nil, nil
	d, ids := recorded(t, discovery.Static{device}, map[string][]string{display: {device.InstanceID}})
	d.Files, d.Policy = brokenFiles{}, permissive()
	c := ofPod(ids)
	c.PodAnnotations = map[string]string{ExtraMountsAnnotation: "a.exe"}
	if _, _, err := decide(t.Context(), d, read(c)); err == nil || refusalOf(err).reason != ReasonOther || !strings.HasSuffix(errlog.Text(err), errlog.RunDoctor) {
		t.Errorf("reason %q: %v", refusalOf(err).reason, err)
	}
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
		"the variable has no effect":      {env: []string{ExtraMountsVariable + "=a.exe"}},
		"for all containers":              {pod: map[string]string{forAll: "a.exe"}, want: []string{"a.exe"}},
		"for this one":                    {pod: map[string]string{forMain: "a.exe"}, want: []string{"a.exe"}},
		"for another":                     {pod: map[string]string{forOther: "a.exe"}},
		"both add up":                     {pod: map[string]string{forMain: "b.exe", forAll: "a.exe"}, want: []string{"a.exe", "b.exe"}},
		"the container's have no effect":  {own: map[string]string{forAll: "a.exe", forMain: "["}},
		"together more than the most":     {pod: map[string]string{forAll: "a\nb", forMain: "c\nd"}, refused: []string{"too many files", forMain}},
		"cannot be read":                  {pod: map[string]string{forMain: "["}, refused: []string{"not a list of files", "annotation " + forMain}},
		"another container's is not ours": {pod: map[string]string{forOther: "["}},
		"in another GPU's driver store":   {pod: map[string]string{forAll: "other.exe"}, refused: []string{"no such file", "other.exe"}},
		"out of the driver store":         {pod: map[string]string{forAll: `..\x`}, refused: []string{`..\x`, forAll}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			devices := testDevices()
			devices[1].DriverStorePath = `C:\second`
			d, ids := recorded(t, discovery.Static(devices), map[string][]string{display: {devices[0].InstanceID}})
			d.Files, d.Policy = storeFiles{}, permissive()
			c := ofPod(ids)
			c.PodAnnotations, c.Env = test.pod, test.env
			maps.Copy(c.Annotations, test.own)
			edits, ok, err := decide(t.Context(), d, read(c))
			_, checkErr := d.Store.GetFor(ids[display], allocation.Holder{PodUID: "other", Container: "main"})
			if isBound := errors.Is(checkErr, allocation.ErrHeld); isBound != (test.refused == nil) {
				t.Errorf("the allocation is bound: %t, error %v", isBound, checkErr)
			}
			if test.refused != nil {
				if errlog.RemedyOf(err) == "" {
					t.Errorf("%v has no remedy", err)
				}
				for _, part := range append(test.refused, `container "main" of pod n/p`) {
					testutil.CheckError(t, "decide", err, part)
				}
				if refusalOf(err).reason != ReasonPolicy {
					t.Errorf("reason %q", refusalOf(err).reason)
				}
				return
			}
			testutil.NoError(t, err)
			if got := mounted(edits); !ok || !slices.Equal(got, test.want) {
				t.Errorf("it gets %v, want %v", got, test.want)
			}
		})
	}
}

func TestStandaloneRequestsExtraMounts(t *testing.T) {
	t.Parallel()
	annotation, variable := map[string]string{ExtraMountsAnnotation: "a.exe"}, []string{ExtraMountsVariable + "=b.exe"}
	for name, test := range map[string]struct {
		annotations map[string]string
		env         []string
		ignores     bool // environment variables
		want        []string
	}{
		"annotation":           {annotations: annotation, want: []string{"a.exe"}},
		"both":                 {annotations: annotation, env: variable, want: []string{"a.exe"}},
		"environment variable": {env: variable, want: []string{"b.exe"}},
		"variable ignored":     {env: variable, ignores: true},
	} {
		d := decider()
		d.Files, d.Policy = storeFiles{}, permissive()
		d.Policy.Standalone.Environment = !test.ignores
		c := Container{OS: "windows", ID: "c1", Env: test.env, Annotations: map[string]string{VisibleAnnotation: "0"}}
		maps.Copy(c.Annotations, test.annotations)
		edits, _, err := decide(t.Context(), d, read(c))
		if got := mounted(edits); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, error %v", name, got, err)
		}
	}
}

func TestAssignmentByClass(t *testing.T) {
	t.Parallel()
	devices := testDevices()
	devices[1].LocationPath = ""
	d, ids := recorded(t, discovery.Static(devices), map[string][]string{display: {devices[1].InstanceID, devices[0].InstanceID}})
	d.Policy.Assignment = policy.AssignByClass
	edits, _, err := decide(t.Context(), d, read(ofPod(ids)))
	class := []specs.WindowsDevice{{ID: ocispec.DisplayClass, IDType: ocispec.IDTypeClass}}
	if _, files := gpusOf(edits); err != nil || !slices.Equal(edits.WindowsDevices, class) || !slices.Equal(files, []string{path1, path0}) {
		t.Errorf("%v, files %v, error %v", edits.WindowsDevices, files, err)
	}
}
