package cli

import (
	"strings"

	"github.com/sirupsen/logrus"

	"directx-nri/internal/config"
	"directx-nri/internal/config/reload"
	"directx-nri/internal/logging"
)

// Reload is who is told when the configuration file has changed.
type Reload struct {
	// Changed is called with what is now in force.
	Changed func(config.Config)
	// Counted is called for each reading of the file after the first: err is nil
	// for a good one, and otherwise why what was in force stays so.
	Counted func(err error)
}

// Watcher returns what keeps the configuration as the file says, as long as it
// runs; initial is what [Settings.Read] returned at the start. What happens is told
// to log, whose level it sets too, and a good file is copied for the shim.
func (s *Settings) Watcher(initial config.Config, log *logrus.Logger, tell Reload) *reload.Watcher {
	file := log.WithField("config", s.File())
	counted := func(err error) {
		if tell.Counted != nil {
			tell.Counted(err)
		}
	}
	return reload.New(initial, reload.Options{
		File: s.File(), Read: s.Read,
		Changed: func(now, _ config.Config) {
			// They have been checked.
			_ = logging.Apply(log, now.Log.Level, now.Log.Format)
			if tell.Changed != nil {
				tell.Changed(now)
			}
			file.Info("The configuration has changed and is in force")
		},
		Refused: func(err error) {
			counted(err)
			file.WithError(err).Error("The configuration file cannot be used and what was in force stays so; correct it, it is read again by itself")
		},
		Accepted: func() {
			counted(nil)
			if err := config.KeepLastGood(s.File()); err != nil {
				file.WithError(err).Warn("The configuration file has no copy for the runtime shim to use should it turn bad")
			}
		},
		Pending: func(keys []string) {
			if len(keys) == 0 {
				file.Info("The configuration is as this program was started with again")
				return
			}
			file.WithField("keys", strings.Join(keys, ", ")).Warn("These settings take effect when this program is started anew")
		},
		Trouble: func(err error) {
			file.WithError(err).Warn("The configuration file's folder cannot be watched; the file is looked at every ten seconds instead")
		},
	})
}
