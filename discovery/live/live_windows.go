package live

import (
	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/discovery/pnp"
)

func openNode(log logrus.FieldLogger) (discovery.Source, error) {
	return pnp.Open(pnp.NewSystem(), log), nil
}

func openNodeWithUUIDs(log logrus.FieldLogger) (discovery.Source, error) {
	return pnp.Open(pnp.NewSystemWithUUIDs(), log), nil
}
