package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no inventory":       {nil, "--inventory is required"},
		"no NRI":             {[]string{"--inventory=x", "--nri-socket="}, "--nri-socket is required"},
		"index":              {[]string{"--inventory=x", "--nri-socket=x", "--nri-index=7"}, `--nri-index: "7" is not a number from 00 to 99`},
		"container OS":       {[]string{"--inventory=x", "--nri-socket=x", "--container-os=plan9"}, `--container-os: "plan9" is none of windows, linux`},
		"runtime folder":     {[]string{"--inventory=x", "--nri-socket=x", "--runtime-dir=/dev/null"}, "/dev/null"},
		"log level is wrong": {[]string{"--log-level=x"}, "--log-level"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := newCommand()
			command.SetArgs(test.args)
			command.SilenceErrors, command.SilenceUsage = true, true
			command.SetErr(new(bytes.Buffer))
			err := command.ExecuteContext(context.Background())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}
