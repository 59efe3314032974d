//go:build e2e && linux

package bed

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// NodeAddress is an address in a range for documentation: the kubelet refuses loopback
// addresses. The loopback device of each run has it.
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

	client *rest.RESTClient
}

// As returns the server for requests with the token of another user.
func (a *APIServer) As(t testing.TB, token string) *APIServer {
	t.Helper()
	client, err := newClient(token)
	testutil.NoError(t, err)
	return &APIServer{client: client}
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
	client, clientErr := newClient(apiToken)
	testutil.NoError(t, err, clientErr)
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
		client:     client,
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
	request := a.client.Verb(method).AbsPath(path)
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		request.Body(data)
	}
	if method == http.MethodPatch {
		request.SetHeader("Content-Type", string(types.MergePatchType))
	}
	result := request.Do(context.Background())
	if err := result.Error(); err != nil || into == nil { // It has the server's message, unlike that of Raw.
		return err
	}
	answer, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

// newClient returns a client of the server, whose certificate is self-signed, for the user of a token.
func newClient(token string) (*rest.RESTClient, error) {
	return rest.UnversionedRESTClientFor(&rest.Config{
		Host: apiURL, BearerToken: token, Timeout: 10 * time.Second, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1,
		ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion(), ContentType: "application/json"},
	})
}
