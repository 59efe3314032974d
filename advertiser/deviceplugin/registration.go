package deviceplugin

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// kubeletSocket is the name of the kubelet's registration socket.
const kubeletSocket = "kubelet.sock"

// registerTimeout bounds one registration, during which the kubelet connects to the server.
const registerTimeout = 10 * time.Second

// registration is the state of the registration with the kubelet.
type registration struct {
	// kubelet identifies the kubelet of the last attempt. Before the first one, it is the kubelet that
	// ran when the server was started.
	kubelet localgrpc.FileIdentity
	// attempted is when the last attempt ended, accepted whether it succeeded, and lastErr its error.
	attempted time.Time
	accepted  bool
	lastErr   errlog.LastError
}

// stayRegistered registers with the kubelet whenever necessary, until ctx ends or the
// socket is removed.
func (s *server) stayRegistered(ctx context.Context, listener *localgrpc.Listener) {
	r := &s.registration
	r.accepted = false // The kubelet does not have this socket yet.
	for ctx.Err() == nil {
		// The kubelet empties the directory before it creates its socket, so the
		// server's socket must be checked after the kubelet's.
		kubelet, err := localgrpc.Identify(filepath.Join(s.config.KubeletDir, kubeletSocket))
		if !listener.Intact() {
			s.log.Info("The socket was removed, creating it again")
			return
		}
		streams := s.currentStreams()
		if err != nil || !r.due(time.Now(), s.timing, kubelet, streams) {
			// A kubelet admits its pods soon after it has created its socket, and refuses
			// those whose devices are not registered by then.
			interval := s.timing.unwatchedInterval
			if streams.open > 0 {
				interval = s.timing.pollInterval
			}
			s.waitForStreams(ctx, interval)
			continue
		}
		err = s.register(ctx)
		if ctx.Err() != nil {
			return
		}
		r.kubelet, r.attempted, r.accepted = kubelet, time.Now(), err == nil
		if changed := r.lastErr.Changed(err); err == nil {
			s.log.Info("Registered with the kubelet")
		} else if changed {
			s.log.WithError(err).Warn("Cannot register with the kubelet, retrying")
		}
	}
}

// register registers once.
func (s *server) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	path := filepath.Join(s.config.KubeletDir, kubeletSocket)
	conn, err := localgrpc.Dial(path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: paths.SocketName(s.resource), ResourceName: s.resource, Options: s.options(),
	})
	if err != nil {
		return fmt.Errorf("register %s on %s: %w", s.resource, path, err)
	}
	return nil
}

// due reports whether to register with kubelet now.
//
// The kubelet drops an accepted registration, without notice, when it ends an older connection for the
// same resource (runClient in plugin/v1beta1/handler.go of pkg/kubelet/cm/devicemanager, v1.34), which
// may be one to an earlier advertiser process:
//  1. If the kubelet has not received the new list yet, it does not watch the list, or stops watching
//     it. So the server registers again.
//  2. If the kubelet has received the new list, the server cannot detect the loss, and the kubelet has
//     no healthy device until the server registers again (kubernetes#121994; v1.37 can refuse every
//     later registration). So the server waits for settleTime before it registers. It does not wait
//     for a kubelet that has started since the last attempt, which has no older connection.
func (r *registration) due(now time.Time, timing timing, kubelet localgrpc.FileIdentity, streams streams) bool {
	if !kubelet.Same(r.kubelet) {
		return true
	}
	if !r.accepted {
		return now.Sub(r.attempted) >= timing.pollInterval && (streams.open > 0 || now.Sub(streams.lastClosed) >= timing.settleTime)
	}
	// An older connection may still end after settleTime, and a new one may still be made before watchTimeout.
	return streams.open == 0 && now.Sub(r.attempted) >= timing.watchTimeout && now.Sub(streams.lastClosed) >= timing.settleTime
}
