// Package httpserver serves a daemon's metrics and health.
//
//	/metrics  for Prometheus
//	/healthz  200 while the process works, otherwise 503 and the reason
//	/readyz   200 while it can do its task, otherwise 503 and the reason
//
// There is no authentication and no encryption: whoever reaches the address can
// read all of it. None of it is a secret, and nothing can be changed by it.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Everything that a client can make us wait for is bounded.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	// checkTimeout bounds one check of health or readiness.
	checkTimeout = 3 * time.Second
	// stopTimeout bounds the wait for answers in flight when the server ends.
	stopTimeout = 2 * time.Second
	// maxHeader in bytes is ample for what asks here.
	maxHeader = 16 << 10
)

// Pages is what a server answers.
type Pages struct {
	// Metrics answers /metrics.
	Metrics http.Handler
	// Healthy and Ready return nil, or why not in one line.
	Healthy, Ready func(ctx context.Context) error
}

// Server is a server that listens and does not answer yet.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen listens on address, host:port, where every host is meant by none. key is
// the address' name in the configuration, for the error: that the address is taken is told now
// and not when somebody misses the metrics.
func Listen(ctx context.Context, key, address string, pages Pages) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve metrics: %w; set %s to an address of this node that is free, as in 127.0.0.1:9400", err, key)
	}
	return &Server{listener: listener, http: &http.Server{
		Handler:           pages.handler(),
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}}, nil
}

// Address returns the address that the server listens on.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run answers until ctx ends, and returns nil then.
func (s *Server) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve metrics on %s: %w", s.Address(), err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(stopping); err != nil {
		// Who has not read its answer by now does without.
		_ = s.http.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics on %s: %w", s.Address(), err)
	}
	return nil
}

// Close ends a server that was not run.
func (s *Server) Close() error {
	if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (p Pages) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.Metrics)
	mux.HandleFunc("GET /healthz", answer(p.Healthy))
	mux.HandleFunc("GET /readyz", answer(p.Ready))
	return mux
}

func answer(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if err := check(ctx); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, err.Error()+"\n")
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}
