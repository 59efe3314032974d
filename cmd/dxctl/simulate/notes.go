package simulate

import (
	"fmt"

	"github.com/sirupsen/logrus"
)

// notes collects what the device plugin warns of in its log.
type notes struct{ lines []string }

// Levels implements [logrus.Hook].
func (*notes) Levels() []logrus.Level { return []logrus.Level{logrus.WarnLevel, logrus.ErrorLevel} }

// Fire implements [logrus.Hook].
func (n *notes) Fire(entry *logrus.Entry) error {
	line := entry.Message
	for _, field := range []string{"gpu", "reason", "fault", logrus.ErrorKey} {
		if value, ok := entry.Data[field]; ok {
			line += fmt.Sprintf(": %v", value)
		}
	}
	n.lines = append(n.lines, line)
	return nil
}
