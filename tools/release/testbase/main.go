// Command testbase runs a command with WINDOWS_BASE_IMAGE set to a stand-in for Microsoft's base image, which it
// serves from a registry on this machine: go run ./testbase make images
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testbase:", err)
		os.Exit(1)
	}
}

func run(command []string) error {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	name := strings.TrimPrefix(server.URL, "http://") + "/base:v1"
	base, err := crane.Image(map[string][]byte{"Files/Windows/System32/config/SYSTEM": []byte("hive")})
	c := exec.Command(command[0], command[1:]...)
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), "WINDOWS_BASE_IMAGE="+name), os.Stdout, os.Stderr
	return errors.Join(err, crane.Push(base, name), c.Run())
}
