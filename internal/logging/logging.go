// Package logging sets a log up as the configuration says.
package logging

import (
	"fmt"

	"github.com/sirupsen/logrus"
)

// Apply gives log the level, which is "error", "warn", "info" or "debug", and
// the form, "text" or "json". It may be called while others log. An error names
// what is none of these, and changes nothing.
func Apply(log *logrus.Logger, level, format string) error {
	parsed, err := parseLevel(level)
	if err != nil {
		return err
	}
	formatter, err := parseFormat(format)
	if err != nil {
		return err
	}
	log.SetLevel(parsed)
	log.SetFormatter(formatter)
	return nil
}

// parseLevel returns the level that name spells.
func parseLevel(name string) (logrus.Level, error) {
	switch name {
	case "error":
		return logrus.ErrorLevel, nil
	case "warn":
		return logrus.WarnLevel, nil
	case "info":
		return logrus.InfoLevel, nil
	case "debug":
		return logrus.DebugLevel, nil
	}
	return 0, fmt.Errorf("log level %q is none of error, warn, info, debug", name)
}

func parseFormat(name string) (logrus.Formatter, error) {
	switch name {
	case "text":
		return &logrus.TextFormatter{FullTimestamp: true, DisableColors: true}, nil
	case "json":
		return &logrus.JSONFormatter{}, nil
	}
	return nil, fmt.Errorf("log format %q is neither text nor json", name)
}
