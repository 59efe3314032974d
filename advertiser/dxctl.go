package advertiser

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// copyTimeout limits the wait for a copy, because a disk can hang.
const copyTimeout = 10 * time.Second

// shareDxctl copies dxctl, once, to where pods of other images can mount it: ours has no Windows.
func (d *Daemon) shareDxctl(ctx context.Context) {
	if d.options.Dxctl == "" || d.sharedDxctl != "" {
		return
	}
	d.sharedDxctl = filepath.Join(d.compiler.StateDir, paths.DxctlFile)
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	_, err := discovery.Await(ctx, func(context.Context) ([]byte, error) {
		data, err := os.ReadFile(d.options.Dxctl)
		if err == nil {
			err = access.MakePrivate(filepath.Dir(d.sharedDxctl))
		}
		if err == nil {
			err = durable.Update(d.sharedDxctl, data, 0o700)
		}
		return data, err
	})
	if err != nil {
		d.log.WithError(err).Warn("Pods cannot mount dxctl, which 'helm test' and the example probe do")
	}
}
