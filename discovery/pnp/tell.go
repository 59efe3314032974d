package pnp

import (
	"slices"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/discovery/history"
)

// tell logs what has changed from one look to the next.
func (s *Source) tell(old, next *history.List) {
	var before []discovery.Device
	var failed error
	if old != nil {
		before, failed = old.Devices, old.Err
	}
	switch {
	case next.Err == nil && failed != nil:
		s.log.Info("Windows tells of its GPUs again")
	case next.Err == nil, failed != nil && failed.Error() == next.Err.Error():
	case next.Generation == 0:
		s.log.WithError(next.Err).Error("Windows does not tell of its GPUs, and there are none until it does; it is asked again by itself")
	default:
		s.log.WithError(next.Err).Error("Windows does not tell of its GPUs, and those that it told of last stay in force; it is asked again by itself")
	}
	if old != nil && old.Generation == next.Generation {
		return
	}
	for _, d := range next.Devices {
		was, known := discovery.Find(before, d.InstanceID)
		s.tellDevice(was, d, known)
	}
	for _, d := range before {
		if _, present := discovery.Find(next.Devices, d.InstanceID); !present {
			s.of(d).Info("GPU has gone")
		}
	}
}

func (s *Source) of(d discovery.Device) logrus.FieldLogger {
	return s.log.WithFields(logrus.Fields{"gpu": d.Name(), "instanceID": d.InstanceID})
}

// tellDevice logs what is new about a device, which was there before when known
// tells so.
func (s *Source) tellDevice(was, is discovery.Device, known bool) {
	log := s.of(is)
	if !known {
		log.WithFields(logrus.Fields{"description": is.Description, "kind": kindName(is), "driver": is.DriverVersion}).Info("GPU found")
	}
	if known && (was.DriverVersion != is.DriverVersion || was.DriverStorePath != is.DriverStorePath) {
		log.WithFields(logrus.Fields{"driver": is.DriverVersion, "driverStore": is.DriverStorePath, "before": was.DriverVersion, "storeBefore": was.DriverStorePath}).
			Info("the GPU's driver is another now; containers that start from now on get its files")
	}
	if known && was.Kind() != is.Kind() {
		log.WithFields(logrus.Fields{"kind": kindName(is), "before": kindName(was)}).Info("GPU is of another kind now")
	}
	switch {
	case was.Health == is.Health:
	case is.Health.OK():
		log.Info("GPU can be used again")
	case is.Kind() == discovery.KindNone:
		// Windows' own devices, and those that nobody waits for.
		log.WithField("reason", is.Health.Reason).Info("device cannot be used")
	default:
		log.WithField("reason", is.Health.Reason).Warn("GPU cannot be used")
	}
	for _, note := range is.Notes {
		if !slices.Contains(was.Notes, note) {
			log.WithField("note", note).Info("GPU has a note")
		}
	}
}

func kindName(d discovery.Device) string {
	switch {
	case d.Software:
		return "software"
	case d.Kind() == discovery.KindNone:
		return "none"
	}
	return string(d.Kind())
}
