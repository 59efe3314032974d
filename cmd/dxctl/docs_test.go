package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

var manDirectory = flag.String("man", "", "`DIRECTORY` of the man pages")

//go:generate go test -run ^TestDocs$ . -update

// TestDocs compares docs/cli.md with the commands' help. 'make generate' writes the page.
func TestDocs(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the defaults in the page are those on Linux")
	}
	testutil.Golden(t, filepath.Join("..", "..", "docs", "cli.md"), cliPage())
}

// everyCommand returns command and all below it that are not hidden.
func everyCommand(command *cobra.Command) []*cobra.Command {
	command.Flags().SortFlags = false // as package cli does
	commands := []*cobra.Command{command}
	for _, below := range command.Commands() {
		if below.IsAvailableCommand() {
			commands = append(commands, everyCommand(below)...)
		}
	}
	return commands
}

// TestManPages writes the man pages of all commands, in a release to the directory of -man. Their date
// is the environment variable SOURCE_DATE_EPOCH.
func TestManPages(t *testing.T) {
	t.Parallel()
	directory := cmp.Or(*manDirectory, t.TempDir())
	command := newCommand()
	command.InitDefaultCompletionCmd()
	commands := everyCommand(command)
	testutil.NoError(t, os.MkdirAll(directory, 0o755))
	testutil.NoError(t, doc.GenManTree(command, &doc.GenManHeader{Source: "directx-nri", Manual: "directx-nri"}, directory))
	if pages, err := os.ReadDir(directory); err != nil || len(pages) < len(commands) {
		t.Errorf("%d pages of %d commands, %v", len(pages), len(commands), err)
	}
}

// cliPage returns docs/cli.md.
func cliPage() string {
	var page strings.Builder
	page.WriteString("# dxctl\n\nGenerated from the commands' help on Linux.\n")
	for _, command := range everyCommand(newCommand()) {
		if command.HasParent() && !command.Runnable() {
			continue
		}
		if command.HasParent() {
			fmt.Fprintf(&page, "\n## %s\n", strings.TrimPrefix(command.CommandPath(), "dxctl "))
		}
		for paragraph := range strings.SplitSeq(strings.TrimSpace(command.Long), "\n\n") {
			if strings.HasPrefix(paragraph, "  ") {
				paragraph = "```text\n" + paragraph + "\n```"
			} else {
				paragraph = strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`).Replace(paragraph)
			}
			fmt.Fprintf(&page, "\n%s\n", paragraph)
		}
		block := command.Example + "\n\n" + command.NonInheritedFlags().FlagUsages()
		fmt.Fprintf(&page, "\n```text\n%s\n```\n", strings.Trim(block, "\n"))
	}
	return page.String()
}

// TestEachCommandExplainsItself checks the texts of commands, and that their examples can be parsed.
func TestEachCommandExplainsItself(t *testing.T) {
	t.Parallel()
	for _, command := range everyCommand(newCommand()) {
		path := command.CommandPath()
		if command.Short == "" || strings.HasSuffix(command.Short, ".") {
			t.Errorf("%s: its short text is %q", path, command.Short)
		}
		if command.Runnable() && (command.Long == "" || !strings.Contains(command.Example, "dxctl ")) {
			t.Errorf("%s has no long text, or no example", path)
		}
		for line := range strings.SplitSeq(strings.ReplaceAll(command.Example, "\\\n", ""), "\n") {
			line, _, _ = strings.Cut(line, " # ")
			words := strings.Fields(line)
			begin := slices.Index(words, "dxctl")
			if begin < 0 {
				continue
			}
			words = words[begin+1:]
			if end := slices.IndexFunc(words, func(word string) bool { return slices.Contains([]string{"|", ">", ">>", "--"}, word) }); end >= 0 {
				words = words[:end]
			}
			called, rest, err := newCommand().Find(words)
			if err == nil {
				err = called.ParseFlags(rest)
			}
			if err != nil || !called.Runnable() && called.HasParent() {
				t.Errorf("%s: example %q: %v", path, line, err)
			}
		}
	}
}
