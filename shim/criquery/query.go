// Package criquery is a stub.
package criquery

import "context"

// Query is a stub.
func Query(ctx context.Context, address, containerID, sandboxID string) (container, pod map[string]string, err error) {
	return nil, nil, ctx.Err()
}
