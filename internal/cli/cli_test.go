package cli

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

func TestRun(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args           []string
		err            error
		status         int
		stdout, stderr string
	}{
		"success":      {nil, nil, 0, "", ""},
		"failure":      {nil, errors.New("open x: no"), 1, "", "prog: open x: no\n"},
		"usage":        {nil, Usage("--a and --b exclude each other"), 2, "", "prog: --a and --b exclude each other\nTry 'prog --help'.\n"},
		"unknown flag": {[]string{"--nope"}, nil, 2, "", "prog: unknown flag: --nope\nTry 'prog --help'.\n"},
		"argument":     {[]string{"x"}, nil, 2, "", "prog: unexpected argument \"x\"\nTry 'prog --help'.\n"},
		"version":      {[]string{"--version"}, nil, 0, "prog version v1.2.3\n", ""},
		"version, x":   {[]string{"-v", "x"}, errors.New("it runs"), 0, "prog version v1.2.3\n", ""},
		"no version":   {[]string{"--version=false"}, errors.New("it runs"), 1, "", "prog: it runs\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := &cobra.Command{Use: "prog", Version: "v1.2.3", RunE: func(*cobra.Command, []string) error { return test.err }}
			var stdout, stderr bytes.Buffer
			status := run(context.Background(), command, test.args, &stdout, &stderr)
			if status != test.status || stdout.String() != test.stdout || stderr.String() != test.stderr {
				t.Errorf("status %d, stdout %q, stderr %q", status, stdout.String(), stderr.String())
			}
		})
	}
}

func TestGroupsOfCommands(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args   []string
		status int
		stderr string
	}{
		"one of the group":     {[]string{"group", "one"}, 0, ""},
		"own status":           {[]string{"group", "two"}, 7, "prog: not so\n"},
		"no command":           {nil, 2, "prog: missing command: want completion, group\nTry 'prog --help'.\n"},
		"no command of group":  {[]string{"group"}, 2, "prog: missing command: want one, two\nTry 'prog group --help'.\n"},
		"unknown command":      {[]string{"nope"}, 2, "prog: unknown command \"nope\": want completion, group\nTry 'prog --help'.\n"},
		"unknown in the group": {[]string{"group", "nope"}, 2, "prog: unknown command \"nope\": want one, two\nTry 'prog group --help'.\n"},
		"argument":             {[]string{"group", "one", "x"}, 2, "prog: unexpected argument \"x\"\nTry 'prog group one --help'.\n"},
		"unknown flag":         {[]string{"group", "one", "--x"}, 2, "prog: unknown flag: --x\nTry 'prog group one --help'.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, group := &cobra.Command{Use: "prog"}, &cobra.Command{Use: "group"}
			command.AddCommand(group)
			group.AddCommand(
				&cobra.Command{Use: "one", RunE: func(*cobra.Command, []string) error { return nil }},
				&cobra.Command{Use: "two", RunE: func(*cobra.Command, []string) error { return WithStatus(7, errors.New("not so")) }},
			)
			var stdout, stderr bytes.Buffer
			status := run(context.Background(), command, test.args, &stdout, &stderr)
			if status != test.status || stdout.String() != "" || stderr.String() != test.stderr {
				t.Errorf("status %d, stdout %q, stderr %q", status, stdout.String(), stderr.String())
			}
		})
	}
}
