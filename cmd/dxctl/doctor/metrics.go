package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"directx-nri/internal/config"
)

// Metrics is an address that one of our programs is to serve metrics and health at.
type Metrics struct {
	// Program is that program, Key the address' name in config.yaml.
	Program, Key, Address string
	// Nobody is why nobody answers there.
	Nobody error
	// Other says what answers there in place of the program, "" when nothing does.
	Other string
	// Unhealthy is what the program says to be wrong with itself.
	Unhealthy string
}

// The programs that serve metrics.
const (
	programAdvertiser = "directx-advertiser"
	programPlugin     = "directx-nri"
)

// maxPage in bytes is above what our programs answer.
const maxPage = 8 << 20

// metrics asks at each address that the configuration has.
func (n Node) metrics(ctx context.Context, c config.Config) []Metrics {
	var list []Metrics
	for _, m := range []Metrics{
		{Program: programAdvertiser, Key: "metrics.address", Address: c.MetricsAddress},
		{Program: programPlugin, Key: "metrics.pluginAddress", Address: c.PluginMetricsAddress},
	} {
		if m.Address != "" {
			m.ask(ctx, &http.Client{Timeout: n.Timeout, Transport: &http.Transport{DisableKeepAlives: true}})
			list = append(list, m)
		}
	}
	return list
}

func (m *Metrics) ask(ctx context.Context, client *http.Client) {
	_, page, err := get(ctx, client, m.Address, "/metrics")
	failed := (*net.OpError)(nil)
	switch {
	// Who hangs is not known by what it does not say.
	case errors.As(err, &failed) && failed.Op == "dial", errors.Is(err, context.DeadlineExceeded):
		m.Nobody = err
		return
	case err != nil:
		m.Other = "it does not answer to HTTP"
		return
	case !strings.Contains(page, `directx_build_info{`) || !strings.Contains(page, fmt.Sprintf("program=%q", m.Program)):
		m.Other = "its metrics are not those of " + m.Program
		return
	}
	switch status, text, err := get(ctx, client, m.Address, "/healthz"); {
	case err != nil:
		m.Unhealthy = err.Error()
	case status != http.StatusOK:
		m.Unhealthy = strings.TrimSpace(text)
	}
}

func get(ctx context.Context, client *http.Client, address, page string) (status int, text string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, "", err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost" // It listens on every address of the node.
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+page, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close() //nolint:errcheck // It was only read.
	body, err := io.ReadAll(io.LimitReader(response.Body, maxPage))
	return response.StatusCode, string(body), err
}
