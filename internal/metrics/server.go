package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

const (
	clientTimeout  = 10 * time.Second // for a request, for its answer, and until the next request
	headerTimeout  = 2 * time.Second  // for a request's headers
	maxConnections = 64               // A further one ends the oldest.
	maxHeaderBytes = 16 << 10
	checkTimeout   = 3 * time.Second
	maxChecks      = 8 // Further ones wait.
	listenInterval = time.Second
)

// Health has the checks of a program. They return nil, or the cause.
type Health struct {
	// Alive is for /healthz: the process works.
	Alive func() error
	// Ready is for /readyz: the process can do its task.
	Ready func(ctx context.Context) error
}

// Serve serves a program's metrics and health on address, host:port, until ctx ends:
//
//	/metrics  for Prometheus
//	/healthz  200 while the process works, otherwise 503 and the cause
//	/readyz   200 while it can do its task, otherwise 503 and the cause
//
// Without an address it serves nothing. There is no authentication and no encryption: every client that
// reaches the address can read all of it. None of it is secret, and nothing can be changed.
func (m *Metrics) Serve(ctx context.Context, address string, health Health, log logrus.FieldLogger) error {
	if address == "" {
		return nil
	}
	listener := listen(ctx, address, log)
	if listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler(log))
	mux.HandleFunc("GET /healthz", healthHandler(func(context.Context) error { return health.Alive() }))
	mux.HandleFunc("GET /readyz", healthHandler(health.Ready))
	server := &http.Server{
		Handler: mux, MaxHeaderBytes: maxHeaderBytes, ConnState: new(connections).track,
		ReadTimeout: clientTimeout, ReadHeaderTimeout: headerTimeout, WriteTimeout: clientTimeout,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	log.WithField("address", listener.Addr().String()).Info("Serving metrics and health without authentication")
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics on %s: %w", listener.Addr(), err)
	}
	return nil
}

// connections are the open connections of a server, oldest first.
type connections struct {
	mu   sync.Mutex
	open []net.Conn
}

// track is [http.Server.ConnState]. It closes the oldest connection when there are too many: if new ones waited
// instead, clients that send nothing could block the kubelet's probes.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open = append(c.open, conn)
		if len(c.open) > maxConnections {
			_ = c.open[0].Close()
			c.open = c.open[1:]
		}
	case http.StateClosed:
		c.open = slices.DeleteFunc(c.open, func(other net.Conn) bool { return other == conn })
	case http.StateActive, http.StateIdle, http.StateHijacked:
	}
}

// listen listens on address. If that fails, it logs the cause and retries, because containers get
// their GPUs without metrics, too. It returns nil when ctx has ended.
func listen(ctx context.Context, address string, log logrus.FieldLogger) net.Listener {
	var last errlog.LastError
	for {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			return listener
		}
		if last.Changed(err) && ctx.Err() == nil {
			log.WithError(err).Error("Cannot serve metrics and health, retrying")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenInterval):
		}
	}
}

// healthHandler returns the handler of a check. Few calls of it run at the same time: a disk can hang.
func healthHandler(check func(context.Context) error) http.HandlerFunc {
	running := make(chan struct{}, maxChecks)
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		err := bounded.Do(ctx, func(ctx context.Context) error {
			select {
			case running <- struct{}{}:
				defer func() { <-running }()
				return check(ctx)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			http.Error(w, errlog.Text(err), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}
