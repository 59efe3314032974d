package decision

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	"directx-nri/ocispec"
)

// A preview is the same decision without effects.
func TestPreviewBindsNothing(t *testing.T) {
	t.Parallel()
	devices := testDevices()
	d, tokens := recorded(t, fixed{devices: devices}, map[string][]string{display: {devices[0].InstanceID}})
	var logged bytes.Buffer
	log := logrus.New()
	log.SetOutput(&logged)
	d.Log = log
	c := ofPod("DIRECTX_ALLOCATION_DISPLAY=" + tokens[display])
	outcome, ok, err := d.Preview(t.Context(), c)
	if err != nil || !ok || len(outcome.Devices) != 1 || outcome.Devices[0].InstanceID != devices[0].InstanceID {
		t.Fatalf("%+v, ok %t, error %v", outcome, ok, err)
	}
	token := allocation.Token(tokens[display])
	if holder, bound, err := d.Store.Holder(token); bound || err != nil {
		t.Errorf("it is bound to %s, error %v", holder, err)
	}
	if logged.Len() > 0 {
		t.Errorf("the log says %s", &logged)
	}

	edits, ok, err := d.Decide(t.Context(), c)
	if err != nil || !ok {
		t.Fatalf("ok %t, error %v", ok, err)
	}
	if diff := cmp.Diff(outcome.Edits, edits); diff != "" {
		t.Errorf("the decision is another (-preview +decision):\n%s", diff)
	}
	if _, bound, err := d.Store.Holder(token); !bound || err != nil {
		t.Errorf("the decision binds nothing, error %v", err)
	}
	if logged.Len() == 0 {
		t.Error("the log says nothing of the decision")
	}
	// What a decision has bound, a preview respects.
	c.Name = "another"
	if _, _, err := d.Preview(t.Context(), c); !errors.Is(err, allocation.ErrHeld) {
		t.Errorf("another container: %v", err)
	}
}

// A refused container binds no allocation, even when the last step fails.
func TestRefusedContainerTakesNothing(t *testing.T) {
	t.Parallel()
	unplaced := discovery.Device{InstanceID: `ROOT\1`, SupportsDisplay: true}
	d, tokens := recorded(t, fixed{devices: []discovery.Device{unplaced}}, map[string][]string{display: {unplaced.InstanceID}})
	c := ofPod("DIRECTX_ALLOCATION_DISPLAY=" + tokens[display])
	if _, _, err := d.Decide(t.Context(), c); !errors.Is(err, ocispec.ErrNotAssignable) {
		t.Errorf("error %v", err)
	}
	if holder, bound, err := d.Store.Holder(allocation.Token(tokens[display])); bound || err != nil {
		t.Errorf("it is bound to %s, error %v", holder, err)
	}
}

func TestPreviewNotes(t *testing.T) {
	t.Parallel()
	d, _ := recorded(t, fixed{devices: testDevices()}, nil)
	d.Files = noFiles{}
	c := ask("0")
	c.OS = ocispec.Windows
	outcome, ok, err := d.Preview(t.Context(), c)
	if err != nil || !ok || len(outcome.Notes) == 0 || len(outcome.Edits.Mounts) > 0 {
		t.Errorf("%+v, ok %t, error %v", outcome, ok, err)
	}
	if outcome, ok, err := d.Preview(t.Context(), Container{OS: ocispec.Windows}); ok || err != nil || len(outcome.Devices) > 0 {
		t.Errorf("without a request: %+v, ok %t, error %v", outcome, ok, err)
	}
}

// noFiles has none of the files that are asked for.
type noFiles struct{ allFiles }

func (noFiles) ResolveAll(paths []string) ([]string, []error) {
	errs := make([]error, len(paths))
	for i := range errs {
		errs[i] = fs.ErrNotExist
	}
	return paths, errs
}
