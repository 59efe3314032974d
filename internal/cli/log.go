package cli

import (
	"fmt"

	"github.com/sirupsen/logrus"
)

// ConfigureLog sets the level of log ("error", "warn", "info" or "debug") and its
// format ("text" or "json"). It can be called while the log is in use. An invalid
// value is an error and changes nothing.
func ConfigureLog(log *logrus.Logger, level, format string) error {
	parsed, ok := map[string]logrus.Level{"error": logrus.ErrorLevel, "warn": logrus.WarnLevel, "info": logrus.InfoLevel, "debug": logrus.DebugLevel}[level]
	if !ok {
		return fmt.Errorf("log level %q: want error, warn, info or debug", level)
	}
	switch format {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{})
	default:
		return fmt.Errorf("log format %q: want text or json", format)
	}
	log.SetLevel(parsed)
	return nil
}
