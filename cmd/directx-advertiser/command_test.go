package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"directx-nri/advertiser"
	"directx-nri/internal/config"
	"directx-nri/internal/readiness"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no inventory":     {nil, "--inventory is required"},
		"no replica":       {[]string{"--inventory=x", "--replicas=0"}, "--replicas: 0 is not possible; choose 1 to 1024"},
		"negative":         {[]string{"--inventory=x", "--replicas=-1"}, "-1 is not possible"},
		"too many":         {[]string{"--inventory=x", "--replicas=1025"}, "1025 is not possible"},
		"no number":        {[]string{"--replicas=many"}, "--replicas"},
		"state folder":     {[]string{"--inventory=x", "--state-dir=/dev/null"}, "/dev/null"},
		"wrong log form":   {[]string{"--inventory=x", "--log-format=xml"}, "--log-format"},
		"served by nobody": {[]string{"--inventory=x", "--served-by=me"}, `--served-by: "me" is none of nri, shim`},
		"no shim": {
			[]string{"--inventory=/nowhere/inventory.yaml", "--fail-on-init-error", "--served-by=shim", "--cri-socket=/nowhere/s"}, "no GPU is offered as long as containers would not get it",
		},
		"no GPU": {
			[]string{"--inventory=/nowhere/inventory.yaml", "--fail-on-init-error", "--served-by=nri", "--nri-socket="}, "/nowhere/inventory.yaml",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := newCommand()
			folder := t.TempDir()
			command.SetArgs(append([]string{"--state-dir", folder + "/state", "--kubelet-dir", folder}, test.args...))
			command.SilenceErrors, command.SilenceUsage = true, true
			command.SetErr(new(bytes.Buffer))
			err := command.ExecuteContext(context.Background())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func TestPluginReadySaysWhatToDo(t *testing.T) {
	t.Parallel()
	c := config.Config{RuntimeDir: t.TempDir()}
	err := pluginReady(c)(t.Context(), advertiser.Start{})
	if !errors.Is(err, readiness.ErrNotRunning) || !strings.Contains(err.Error(), "is directx-nri running on this node, and is NRI enabled in containerd?") {
		t.Error(err)
	}
}
