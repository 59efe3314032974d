//go:build unix

package nodeservice

import (
	"errors"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil/containerdtest"
)

func TestServiceIsForWindows(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"install", "--", "--replicas", "4"}, {"uninstall"}} {
		_, _, err := containerdtest.Run(t, NewCommand(), args...)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "deployments/systemd") {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, _, err := containerdtest.Run(t, NewCommand(), "install", "--replicas", "4"); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("flags of directx-advertiser without --: %v", err)
	}
}
