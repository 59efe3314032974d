package nri

import (
	"time"

	"github.com/sirupsen/logrus"

	"directx-nri/nri/decision"
)

// Observer is told what the hooks do, for metrics. Its methods return at once
// and are called by many at once.
type Observer interface {
	// HookDone tells how long the runtime waited for a hook.
	HookDone(hook string, took time.Duration)
	// Refused tells that a container was not started; by is who refused it,
	// reason a [decision.Reason].
	Refused(by, reason string)
	// Evicted tells that a container was stopped that ran without its GPU.
	Evicted()
}

// Names of the hooks and of those who refuse, as an [Observer] is told them.
const (
	hookCreate      = "CreateContainer"
	hookStart       = "StartContainer"
	hookSynchronize = "Synchronize"

	byPlugin = "nri"
	byGuard  = "guard"
)

// nobody is the observer where nobody wants to know.
type nobody struct{}

func (nobody) HookDone(string, time.Duration) {}
func (nobody) Refused(string, string)         {}
func (nobody) Evicted()                       {}

func orNobody(o Observer) Observer {
	if o == nil {
		return nobody{}
	}
	return o
}

// refused tells that c is refused with err: in one line of log, and to o.
func refused(log logrus.FieldLogger, o Observer, by string, c decision.Container, err error) {
	decision.LogRefusal(log, c, err)
	orNobody(o).Refused(by, string(decision.ReasonOf(err)))
}
