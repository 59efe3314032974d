//go:build e2e && linux

package bed

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// NodeAddress is an address in a range for documentation: the kubelet refuses loopback
// addresses. It and the ports of an API server require a [Suite] with a network.
const NodeAddress = "192.0.2.10"

const (
	etcdAddress = "127.0.0.1:2379"
	apiURL      = "https://127.0.0.1:6443"
	// apiToken identifies the only user, an administrator.
	apiToken = "of-the-suite"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: suite
contexts: [{name: suite, context: {cluster: suite, user: suite}}]
clusters: [{name: suite, cluster: {server: "` + apiURL + `", insecure-skip-tls-verify: true}}]
users: [{name: suite, user: {token: %s}}]
`

// APIServer is a Kubernetes API server with its own etcd.
type APIServer struct {
	*Process
	// Kubeconfig is the file with which programs find it.
	Kubeconfig string

	client *http.Client
	token  string
}

// As returns the server for requests with the token of another user.
func (a *APIServer) As(token string) *APIServer {
	other := *a
	other.token = token
	return &other
}

// Patch merges body into an object.
func (a *APIServer) Patch(path string, body any) error {
	return a.do(http.MethodPatch, path, body, nil)
}

// StartAPIServer starts an API server with its files in dir, until the test ends. It does
// not wait until the server is ready.
func StartAPIServer(t testing.TB, parts Parts, dir, logs string) *APIServer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	testutil.NoError(t, err)
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) string { return WriteFile(t, file(name), content, 0o644) }
	accounts := write("accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	start := func(name string, args ...string) *Process {
		p := NewProcess(name, filepath.Join(logs, name+".log"), func() *exec.Cmd { return exec.Command(parts.Stock("../cluster/"+name), args...) })
		p.StartForTest(t)
		return p
	}
	start("etcd", "--data-dir", file("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+etcdAddress, "--advertise-client-urls", "http://"+etcdAddress,
		"--listen-peer-urls", "http://127.0.0.1:0")
	return &APIServer{
		Process: start("kube-apiserver",
			"--etcd-servers", "http://"+etcdAddress, "--bind-address", "127.0.0.1", "--advertise-address", NodeAddress,
			"--cert-dir", file("api-server"), "--token-auth-file", write("tokens.csv", apiToken+",suite,suite,system:masters\n"),
			"--authorization-mode", "RBAC",
			"--service-account-issuer", "https://suite", "--service-account-key-file", accounts,
			"--service-account-signing-key-file", accounts, "--service-cluster-ip-range", "10.96.0.0/24",
			"--endpoint-reconciler-type", "none", "--disable-admission-plugins", "ServiceAccount",
			"--kubelet-preferred-address-types", "InternalIP",
			// HostProcess containers are privileged.
			"--allow-privileged"),
		Kubeconfig: WriteKubeconfig(t, file("kubeconfig"), apiToken),
		token:      apiToken,
		// The server's certificate is self-signed.
		client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}},
	}
}

// WriteKubeconfig writes a file with which programs find the server as the user of a token.
func WriteKubeconfig(t testing.TB, path, token string) string {
	t.Helper()
	return WriteFile(t, path, fmt.Sprintf(kubeconfig, token), 0o600)
}

// WaitAPI waits until the API server is ready.
func (a *APIServer) WaitAPI(t testing.TB) {
	t.Helper()
	Eventually(t, 90*time.Second, "the API server is ready", func() error { return a.Get("/readyz", nil) })
}

// Get reads an object. It is much faster than kubectl.
func (a *APIServer) Get(path string, into any) error {
	return a.do(http.MethodGet, path, nil, into)
}

// do sends a request with an object, if body is not nil, and decodes the answer if into
// is not nil. A PATCH merges.
func (a *APIServer) do(method, path string, body, into any) error {
	var data bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&data).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequest(method, apiURL+path, &data)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s %s: %w", method, path, fs.ErrNotExist)
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}
