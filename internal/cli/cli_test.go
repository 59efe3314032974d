package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/errlog"
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
		"failure":      {nil, errlog.WithRemedy(errors.New("open x: no"), "try y"), 1, "", "prog: open x: no; try y\n"},
		"permission":   {nil, fmt.Errorf("read: %w", fs.ErrPermission), 1, "", "prog: read: permission denied\nRun prog as root, or on Windows as an administrator.\n"},
		"usage":        {nil, UsageError("--a and --b exclude each other"), 2, "", "prog: --a and --b exclude each other\nTry 'prog --help'.\n"},
		"unknown flag": {[]string{"--nope"}, nil, 2, "", "prog: unknown flag: --nope\nTry 'prog --help'.\n"},
		"argument":     {[]string{"x"}, nil, 2, "", "prog: unknown command \"x\" for \"prog\"\nTry 'prog --help'.\n"},
		"version":      {[]string{"--version"}, nil, 0, "prog version v1.2.3\n", ""},
		"version, x":   {[]string{"-v", "x"}, errors.New("it runs"), 0, "prog version v1.2.3\n", ""},
		"no version":   {[]string{"--version=false"}, errors.New("it runs"), 1, "", "prog: it runs\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command := &cobra.Command{Use: "prog", Version: "v1.2.3", RunE: func(*cobra.Command, []string) error { return test.err }}
			var stdout, stderr bytes.Buffer
			// Cobra takes the arguments of the process in place of nil.
			status := run(context.Background(), command, append([]string{}, test.args...), &stdout, &stderr)
			if status != test.status || stdout.String() != test.stdout || stderr.String() != test.stderr {
				t.Errorf("status %d, stdout %q, stderr %q", status, stdout.String(), stderr.String())
			}
		})
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	const help = "Usage:\n  prog"
	for name, test := range map[string]struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		"one of the group":    {[]string{"group", "one"}, 0, "", ""},
		"unknown result":      {[]string{"group", "two"}, 3, "", "prog: not answered\n"},
		"no command":          {nil, 0, help, ""},
		"no command of group": {[]string{"group"}, 0, help + " group", ""},
		"a similar command":   {[]string{"grop", "--flag"}, 2, "", "prog: unknown command \"grop\" for \"prog\" Did you mean this? group\nTry 'prog --help'.\n"},
		"unknown command":     {[]string{"nope"}, 2, "", "prog: unknown command \"nope\" for \"prog\"\nTry 'prog --help'.\n"},
		"help":                {[]string{"help", "group", "one"}, 0, help + " group one", ""},
		"too many arguments":  {[]string{"group", "two", "a", "b"}, 2, "", "prog: accepts at most 1 arg(s), received 2\nTry 'prog group two --help'.\n"},
		"two errors":          {[]string{"group", "three"}, 1, "", "prog: a\nprog: b\n"},
		"choice":              {[]string{"group", "one", "--color", "red"}, 0, "", ""},
		"no choice":           {[]string{"group", "one", "--color", "gold"}, 2, "", "prog: invalid argument \"gold\" for \"--color\" flag: want one of blue, green, red\nTry 'prog group one --help'.\n"},
		"completed choice":    {[]string{"__complete", "group", "one", "--color", ""}, 0, "blue\ngreen\nred\n:4\n", "Completion ended with directive: ShellCompDirectiveNoFileComp\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, group := &cobra.Command{Use: "prog"}, &cobra.Command{Use: "group"}
			command.AddCommand(group)
			one := &cobra.Command{Use: "one", RunE: func(*cobra.Command, []string) error { return nil }}
			AddChoice(one, new(string), "color", "", "the color", "blue", "green", "red")
			group.AddCommand(one, &cobra.Command{Use: "two [NAME]", Args: cobra.MaximumNArgs(1), RunE: func(*cobra.Command, []string) error { return UnknownResult(errors.New("not answered")) }},
				&cobra.Command{Use: "three", RunE: func(*cobra.Command, []string) error { return errors.Join(errors.New("a"), errors.New("b")) }})
			var stdout, stderr bytes.Buffer
			// Cobra takes the arguments of the process in place of nil.
			status := run(context.Background(), command, append([]string{}, test.args...), &stdout, &stderr)
			if status != test.status || stderr.String() != test.stderr {
				t.Errorf("status %d, stderr %q; want %d, %q", status, stderr.String(), test.status, test.stderr)
			}
			if out := stdout.String(); !strings.Contains(out, test.stdout) || test.stdout == "" && out != "" {
				t.Errorf("stdout %q, want %q", out, test.stdout)
			}
		})
	}
}

// TestEnvironment is not parallel: it sets environment variables.
func TestEnvironment(t *testing.T) {
	for name, test := range map[string]struct {
		args            []string
		value           string
		status          int
		want, stderrHas string
	}{
		"not set":       {nil, "", 0, "blue", ""},
		"set":           {nil, "red", 0, "red", ""},
		"flag and set":  {[]string{"--main-color", "green"}, "red", 0, "green", ""},
		"invalid value": {nil, "gold", 2, "blue", "prog: DIRECTX_NRI_MAIN_COLOR: "},
	} {
		t.Setenv("DIRECTX_NRI_MAIN_COLOR", test.value)
		var color string
		var stdout, stderr bytes.Buffer
		command := &cobra.Command{Use: "prog", RunE: func(*cobra.Command, []string) error { return nil }}
		AddChoice(command, &color, "main-color", "", "the color", "blue", "green", "red")
		AddEnvironment(command)
		status := run(context.Background(), command, append([]string{}, test.args...), &stdout, &stderr)
		if status != test.status || color != test.want || !strings.HasPrefix(stderr.String(), test.stderrHas) {
			t.Errorf("%s: status %d, color %s, stderr %q", name, status, color, &stderr)
		}
	}
}
