package preview

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"directx-nri/internal/allocation"
)

// What we may not read, the shim may: it is no refusal.
func TestAskOfWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		asOrdinaryUser(t)
		return
	}
	n, token, _ := node(t)
	folder := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(folder, 0); err != nil {
		t.Fatal(err)
	}
	n.Store = allocation.OpenStore(folder)
	for name, q := range map[string]Question{
		"a token that is named":     {Spec: spec("p", nil), Token: token},
		"a token that is presented": {Spec: spec("p", nil, "DIRECTX_ALLOCATION_COMPUTE="+string(token))},
	} {
		if a, err := Ask(t.Context(), q, n); !errors.Is(err, fs.ErrPermission) || a.Refused != nil {
			t.Errorf("%s: refused %v, error %v", name, a.Refused, err)
		}
	}
}

// asOrdinaryUser runs the test again, for root, who may read everything: as the
// one user of a user namespace, who has no rights but those of the files' owner.
func asOrdinaryUser(t *testing.T) {
	t.Helper()
	again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	again.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}},
	}
	out, err := again.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Skipf("root may read everything, and cannot be somebody else here: %v", err)
	}
	if err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, out)
	}
}
