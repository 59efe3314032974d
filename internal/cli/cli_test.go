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
	"github.com/directx-nri/directx-nri/internal/testutil"
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
		"usage":        {nil, UsageError("--a and --b exclude each other"), 2, "", "prog: --a and --b exclude each other\nTry 'prog --help'.\n"},
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
		"one of the group":     {[]string{"group", "one"}, 0, "", ""},
		"unknown result":       {[]string{"group", "two"}, 3, "", "prog: not answered\n"},
		"no command":           {nil, 0, help, ""},
		"no command of group":  {[]string{"group"}, 0, help + " group", ""},
		"unknown command":      {[]string{"nope"}, 2, "", "prog: unknown command \"nope\"\nTry 'prog --help'.\n"},
		"similar command":      {[]string{"gruop"}, 2, "", "prog: unknown command \"gruop\"; did you mean group?\nTry 'prog --help'.\n"},
		"similar in the group": {[]string{"group", "tow"}, 2, "", "prog: unknown command \"tow\"; did you mean two?\nTry 'prog group --help'.\n"},
		"help":                 {[]string{"help", "group", "one"}, 0, help + " group one", ""},
		"help of no command":   {[]string{"help", "gruop"}, 2, "", "prog: unknown command \"gruop\"; did you mean group?\nTry 'prog help --help'.\n"},
		"no such shell":        {[]string{"completion", "bsh"}, 2, "", "prog: unknown command \"bsh\"; did you mean bash or fish or zsh?\nTry 'prog completion --help'.\n"},
		"too many arguments":   {[]string{"group", "two", "a", "b"}, 2, "", "prog: got 2 arguments, want 'prog group two [NAME] [flags]'\nTry 'prog group two --help'.\n"},
		"two errors":           {[]string{"group", "three"}, 1, "", "prog: a\nprog: b\n"},
		"argument":             {[]string{"group", "one", "x"}, 2, "", "prog: unexpected argument \"x\"\nTry 'prog group one --help'.\n"},
		"unknown flag":         {[]string{"group", "one", "--x"}, 2, "", "prog: unknown flag: --x\nTry 'prog group one --help'.\n"},
		"missing flag":         {[]string{"group", "needy"}, 2, "", "prog: required flag(s) \"color\" not set\nTry 'prog group needy --help'.\n"},
		"choice":               {[]string{"group", "one", "--color", "red"}, 0, "", ""},
		"no choice":            {[]string{"group", "one", "--color", "gold"}, 2, "", "prog: invalid argument \"gold\" for \"--color\" flag: want one of blue, green, red\nTry 'prog group one --help'.\n"},
		"completed choice":     {[]string{"__complete", "group", "one", "--color", ""}, 0, "blue\ngreen\nred\n:4\n", "Completion ended with directive: ShellCompDirectiveNoFileComp\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, group := &cobra.Command{Use: "prog"}, &cobra.Command{Use: "group"}
			command.AddCommand(group)
			one := &cobra.Command{Use: "one", RunE: func(*cobra.Command, []string) error { return nil }}
			AddChoice(one, new(string), "color", "the color", "blue", "green", "red")
			needy := &cobra.Command{Use: "needy", RunE: func(*cobra.Command, []string) error { return nil }}
			needy.Flags().String("color", "", "the color")
			testutil.NoError(t, needy.MarkFlagRequired("color"))
			group.AddCommand(one, needy, &cobra.Command{Use: "two [NAME]", Args: Arguments(0, 1), RunE: func(*cobra.Command, []string) error { return UnknownResult(errors.New("not answered")) }},
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

func TestPermissionRemedy(t *testing.T) {
	t.Parallel()
	denied := fmt.Errorf("read: %w", fs.ErrPermission)
	if got := permissionRemedy("prog", denied, false); got != "Run prog as "+administratorName+".\n" {
		t.Errorf("denied: %q", got)
	}
	if got := permissionRemedy("prog", denied, true) + permissionRemedy("prog", errors.New("other"), false); got != "" {
		t.Errorf("no remedy helps: %q", got)
	}
}
