// Package errlog configures logs, and has what errors need there: they are logged once while they
// persist and in one line, and have remedies.
package errlog

import (
	"strings"
	"unicode"

	"github.com/sirupsen/logrus"
)

// LastError is the text of the last error of an operation that is repeated, "" after a success.
// With it, an error that persists is logged once.
type LastError string

// Replace makes err, nil for a success, the last error and reports whether it differs from
// the one before.
func (l *LastError) Replace(err error) (differs bool) {
	before := *l
	*l = ""
	if err != nil {
		*l = LastError(err.Error())
	}
	return *l != before
}

// Log is [LastError.Replace], and logs an error that differs with the message failed, or the first
// success after an error with the message recovered.
func (l *LastError) Log(log logrus.FieldLogger, err error, failed, recovered string) {
	switch differs := l.Replace(err); {
	case differs && err != nil:
		log.WithError(err).Error(failed)
	case differs:
		log.Info(recovered)
	}
}

// OneLine returns text as one line without control characters, which drivers and foreign files
// may contain: they move the cursor, or worse.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool { return !unicode.IsPrint(r) }), " ")
}

// Configure sets the level of log ("error", "warn", "info" or "debug") and its format ("text" or
// "json"), as the node policy has them. It can be called while the log is in use.
func Configure(log *logrus.Logger, level, format string) {
	if parsed, err := logrus.ParseLevel(level); err == nil {
		log.SetLevel(parsed)
	}
	if format == "json" {
		log.SetFormatter(&logrus.JSONFormatter{})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	}
}
