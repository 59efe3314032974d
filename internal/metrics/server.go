package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/errlog"
)

// Limits on how long the server waits for a client.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	checkTimeout = 3 * time.Second
	stopTimeout  = 2 * time.Second
	// listenInterval is the pause between attempts to listen.
	listenInterval = time.Second
	maxHeader      = 16 << 10 // bytes
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
// Without an address it serves nothing. setting is the name of the address in the log.
// There is no authentication and no encryption: every client that reaches the address
// can read all of it. None of it is secret, and nothing can be changed.
func (m *Metrics) Serve(ctx context.Context, setting, address string, health Health, log logrus.FieldLogger) error {
	if address == "" {
		return nil
	}
	listener := listen(ctx, setting, address, log)
	if listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler(log))
	mux.HandleFunc("GET /healthz", healthHandler(func(context.Context) error { return health.Alive() }))
	mux.HandleFunc("GET /readyz", healthHandler(health.Ready))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := server.Shutdown(stopping); err != nil {
			_ = server.Close() // A client does not read its answer.
		}
	})
	log.WithField("address", listener.Addr().String()).Info("Serving metrics and health without authentication")
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics on %s: %w", listener.Addr(), err)
	}
	<-stopped
	return nil
}

// listen listens on address. If that fails, it logs the cause and retries, because containers get
// their GPUs without metrics, too. It returns nil when ctx has ended.
func listen(ctx context.Context, setting, address string, log logrus.FieldLogger) net.Listener {
	var last errlog.LastError
	for {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			return listener
		}
		if last.Changed(err) && ctx.Err() == nil {
			log.WithError(err).Errorf("Cannot serve metrics and health, retrying; set %s to an unused address of this node, such as 127.0.0.1:9400", setting)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenInterval):
		}
	}
}

func healthHandler(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if err := check(ctx); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, errlog.Text(err)+"\n")
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}
