package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/advertiser/config"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// runCommand runs dxctl and returns what it printed on each of its outputs. Commands that show something run
// without this machine's node policy, unless args have a state directory.
func runCommand(ctx context.Context, t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	if len(args) > 0 && slices.Contains([]string{"devices", "allocations", "flags", "spec"}, args[0]) && !slices.Contains(args, "--state-dir") {
		args = slices.Concat(args[:1], []string{"--state-dir", filepath.Join(t.TempDir(), "none")}, args[1:])
	}
	command := newCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	var out, errs bytes.Buffer
	command.SetIn(strings.NewReader(stdin))
	command.SetOut(&out)
	command.SetErr(&errs)
	command.SetArgs(args)
	err = command.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// runCLI runs dxctl and returns what it printed.
func runCLI(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	stdout, stderr, err := runCommand(t.Context(), t, "", args...)
	return stderr + stdout, err
}

const configHead = "apiVersion: " + config.APIVersion + "\nkind: " + config.Kind + "\n"

// configFile writes a configuration file that only this user can write.
func configFile(t *testing.T, text string) string {
	t.Helper()
	return privateFile(t, "config.yaml", configHead+text)
}

func privateFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	testutil.WriteFile(t, file, text, 0o600)
	return file
}

// golden compares got with testdata/golden/NAME.txt.
func golden(t *testing.T, name, got string) {
	t.Helper()
	testutil.Golden(t, filepath.Join("testdata", "golden", name+".txt"), got)
}

// withoutDir returns text with DIR in place of dir, and with slashes in the paths below it.
func withoutDir(t *testing.T, text, dir string) string {
	t.Helper()
	quoted, err := json.Marshal(dir) // In JSON, and in what Go quotes, a backslash is doubled.
	testutil.NoError(t, err)
	for _, form := range []string{strings.Trim(string(quoted), `"`), dir} {
		text = strings.ReplaceAll(text, form, "DIR")
	}
	below := regexp.MustCompile(`DIR(\\+[^\\\s"',;:]+)+`)
	return below.ReplaceAllStringFunc(text, func(path string) string {
		return strings.ReplaceAll(strings.ReplaceAll(path, `\\`, "/"), `\`, "/")
	})
}
