//go:build !linux

package service

import (
	"context"
	"errors"
	"fmt"
)

type behind struct{ program string }

// Behind is there on Linux only: elsewhere its restarts fail.
func Behind(_, program string) Service { return behind{program} }

func (b behind) String() string { return "a signal to " + b.program }

func (b behind) Restart(ctx context.Context) error { return b.Check(ctx) }

func (b behind) Check(context.Context) error {
	return fmt.Errorf("restart by %s: %w", b, errors.ErrUnsupported)
}
