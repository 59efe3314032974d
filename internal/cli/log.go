package cli

import (
	"fmt"

	"github.com/sirupsen/logrus"
)

// ConfigureLog sets the level of log ("error", "warn", "info" or "debug") and its
// format ("text" or "json"). It can be called while the log is in use. An invalid
// value is an error and changes nothing.
func ConfigureLog(log *logrus.Logger, level, format string) error {
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
	return 0, fmt.Errorf("log level %q: want error, warn, info or debug", name)
}

func parseFormat(name string) (logrus.Formatter, error) {
	switch name {
	case "text":
		return &logrus.TextFormatter{FullTimestamp: true, DisableColors: true}, nil
	case "json":
		return &logrus.JSONFormatter{}, nil
	}
	return nil, fmt.Errorf("log format %q: want text or json", name)
}
