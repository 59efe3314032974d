package errlog

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/sirupsen/logrus"
)

// ErrInternal is the error of a recovered panic.
var ErrInternal = errors.New("internal error in directx-nri, please report it")

// PanicError logs a recovered panic with its stack, and returns it as an error that matches
// [ErrInternal].
func PanicError(log logrus.FieldLogger, cause any) error {
	log.WithField("stack", string(debug.Stack())).Error(cause)
	return fmt.Errorf("%w: %v", ErrInternal, cause)
}
