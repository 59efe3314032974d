//go:build !windows

package live

import (
	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
)

func openNode(logrus.FieldLogger) (discovery.Source, error) { return nil, ErrNoInventory }

func openNodeWithUUIDs(logrus.FieldLogger) (discovery.Source, error) { return nil, ErrNoInventory }
