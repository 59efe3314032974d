//go:build !windows

package service

import (
	"context"
	"errors"
	"fmt"
)

// RunTask is supported on Windows only.
func RunTask(_ context.Context, t Task) error {
	return fmt.Errorf("scheduled task %q: %w", t.Name, errors.ErrUnsupported)
}

// DeleteTask returns nil: other systems have no such tasks.
func DeleteTask(context.Context, string) error { return nil }

// Programs returns nothing: it is supported on Windows only.
func Programs(string) []string { return nil }
