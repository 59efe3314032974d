//go:build !linux

package service

import (
	"context"
	"errors"
	"fmt"
)

type signaled struct{ program string }

// BySignal works on Linux only: elsewhere its restarts fail.
func BySignal(_, program string) Service { return signaled{program} }

func (s signaled) String() string { return "a signal to " + s.program }

func (s signaled) Restart(ctx context.Context) error { return s.Check(ctx) }

func (s signaled) Check(context.Context) error {
	return fmt.Errorf("restart by %s: %w", s, errors.ErrUnsupported)
}
