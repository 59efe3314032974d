package shim

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestImports keeps the shim lean. It starts twice for each container of a
// node, and every package that it links costs a part of that: NRI's protobuf
// types alone more than a millisecond. Measure before adding to these lists.
func TestImports(t *testing.T) {
	t.Parallel()
	allowed := []string{
		"github.com/cyphar/filepath-securejoin", "github.com/gofrs/flock",
		"github.com/opencontainers/runtime-spec", "github.com/sirupsen/logrus", "golang.org/x/sys",
		"golang.org/x/net/http2/hpack", "google.golang.org/protobuf/encoding/protowire", "google.golang.org/protobuf/internal/detrand", "google.golang.org/protobuf/internal/errors",
	}
	heavy := []string{"net", "net/http", "crypto/tls", "crypto/x509", "html/template", "text/template", "flag", "testing", "database/sql", "regexp"}
	for _, os := range []string{"linux", "windows"} {
		command := exec.Command("go", "list", "-deps", "-f",
			"{{.ImportPath}} {{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}",
			"github.com/directx-nri/directx-nri/cmd/containerd-shim-directx-v1")
		command.Env = append(command.Environ(), "GOOS="+os)
		out, err := command.Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			path, module, _ := strings.Cut(strings.TrimSpace(line), " ")
			if module != "" && !slices.Contains(allowed, module) && !slices.Contains(allowed, path) {
				t.Errorf("%s: the shim links %s", os, path)
			}
			// The Win32 declarations of x/sys use net's address types.
			if slices.Contains(heavy, path) && (os != "windows" || path != "net") {
				t.Errorf("%s: the shim links %s", os, path)
			}
		}
	}
}
