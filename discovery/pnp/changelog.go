package pnp

import (
	"slices"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
)

// logChanges logs the differences between two reads.
func (s *Source) logChanges(old, next *state) {
	switch {
	case next.err == nil && old.err != nil:
		s.log.Info("GPUs can be read again")
	case next.err == nil, old.err != nil && old.err.Error() == next.err.Error():
	case next.generation == 0:
		s.log.WithError(next.err).Error("Failed to read the GPUs; there are none until a retry succeeds")
	default:
		s.log.WithError(next.err).Error("Failed to read the GPUs; the last list stays in force until a retry succeeds")
	}
	if old.generation == next.generation {
		return
	}
	for _, d := range next.devices {
		was, known := discovery.Find(old.devices, d.InstanceID)
		s.logDevice(was, d, known)
	}
	for _, d := range old.devices {
		if _, present := discovery.Find(next.devices, d.InstanceID); !present {
			s.logger(d).Info("GPU removed")
		}
	}
}

func (s *Source) logger(d discovery.Device) logrus.FieldLogger {
	return s.log.WithFields(logrus.Fields{"gpu": d.Name(), "instanceID": d.InstanceID})
}

// logDevice logs the differences between two states of a device. known is false for a
// new device.
func (s *Source) logDevice(was, is discovery.Device, known bool) {
	log := s.logger(is)
	if !known {
		log.WithFields(logrus.Fields{"description": is.Description, "kind": kindName(is), "driver": is.DriverVersion}).Info("GPU found")
	}
	if known && (was.DriverVersion != is.DriverVersion || was.DriverStorePath != is.DriverStorePath) {
		log.WithFields(logrus.Fields{"driver": is.DriverVersion, "driverStore": is.DriverStorePath, "oldDriver": was.DriverVersion, "oldDriverStore": was.DriverStorePath}).
			Info("GPU driver changed; new containers get its files")
	}
	if known && was.Kind() != is.Kind() {
		log.WithFields(logrus.Fields{"kind": kindName(is), "oldKind": kindName(was)}).Info("GPU kind changed")
	}
	switch {
	case was.Health == is.Health:
	case is.Health.OK():
		log.Info("GPU is healthy again")
	case is.Kind() == discovery.KindNone:
		log.WithField("reason", is.Health.Reason).Info("Device cannot be used")
	default:
		log.WithField("reason", is.Health.Reason).Warn("GPU is unhealthy")
	}
	for _, note := range is.Notes {
		if !slices.Contains(was.Notes, note) {
			log.WithField("note", note).Info("GPU note")
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
