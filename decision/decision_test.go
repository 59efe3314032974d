package decision

import (
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// TestOpenReadsThePolicy: the plugin runs on when the policy changes.
func TestOpenReadsThePolicy(t *testing.T) {
	t.Parallel()
	state, log := t.TempDir()+"/state", testutil.Quiet()
	p := policy.Default()
	p.Log.Level, p.Standalone.Environment = "debug", true
	testutil.NoError(t, policy.Write(state, p))
	d, err := Open(state, "linux", hostfiles.Assumed{}, log)
	if err != nil || !d.Policy.Standalone.Environment || log.GetLevel() != logrus.DebugLevel {
		t.Errorf("%+v, error %v, level %s", d, err, log.GetLevel())
	}
	testutil.WriteFile(t, policy.Path(state), "{", 0o600)
	if _, err := Open(state, "linux", hostfiles.Assumed{}, log); refusalOf(err).reason != ReasonConfig {
		t.Errorf("with a damaged policy: %v", err)
	}
}
