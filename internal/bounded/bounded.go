// Package bounded limits how long a caller waits for a driver, a service or a disk that cannot be interrupted.
package bounded

import (
	"context"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Call returns the result of call. If ctx ends first, it returns the cause and leaves call running. A panic of call is
// an error: it is in another goroutine, in which the caller cannot recover it.
func Call[T any](ctx context.Context, call func(context.Context) (T, error)) (value T, err error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if cause := recover(); cause != nil {
				r.err = errlog.PanicError(cause)
			}
			done <- r
		}()
		r.value, r.err = call(ctx)
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

// Do is [Call] without a result.
func Do(ctx context.Context, call func(context.Context) error) error {
	_, err := Call(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}
