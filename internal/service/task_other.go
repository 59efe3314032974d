//go:build !windows

package service

import (
	"context"
	"errors"
	"fmt"
)

// RunTask is there on Windows only.
func RunTask(_ context.Context, t Task) error {
	return fmt.Errorf("scheduled task %q: %w", t.Name, errors.ErrUnsupported)
}

// DeleteTask is there on Windows only.
func DeleteTask(context.Context, string) error { return nil }

// Programs is there on Windows only.
func Programs(string) []string { return nil }
