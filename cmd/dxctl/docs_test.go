package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

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
	page.WriteString(`# dxctl

Generated from the commands' help on Linux. The first output format (` + "`-o`" + `) is the default.
Locations that several commands need are among the [common flags](#common-flags) only. In a flag's
text, a word in capitals is its value.
`)
	commands := everyCommand(newCommand())
	common := commonFlags(commands)
	for _, command := range commands {
		describe(&page, command, common)
	}
	page.WriteString("\n## Common flags\n\n```text\n")
	table := tabwriter.NewWriter(&page, 0, 0, 2, ' ', 0)
	for _, key := range slices.Sorted(maps.Keys(common)) {
		writeFlag(table, common[key])
	}
	table.Flush()
	page.WriteString("```\n")
	return page.String()
}

// flagUsage is a flag in its command's help: its name, its value and the rest.
var flagUsage = regexp.MustCompile(`^(.*--\S+)( \S+)?   +(.*)\n$`)

// writeFlag writes a flag and its usage as two columns. A value in capitals is left out:
// the usage has it, too.
func writeFlag(table io.Writer, f *pflag.Flag) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.AddFlag(f)
	parts := flagUsage.FindStringSubmatch(flags.FlagUsages())
	value := parts[2]
	if value == strings.ToUpper(value) {
		value = ""
	}
	fmt.Fprintf(table, "%s%s\t%s\n", parts[1], value, parts[3])
}

// commonFlags returns the flags that several commands have with the same meaning, by flagKey.
func commonFlags(commands []*cobra.Command) map[string]*pflag.Flag {
	common, users := map[string]*pflag.Flag{}, map[string]int{}
	for _, command := range commands {
		command.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			key := flagKey(f)
			users[key]++
			if users[key] > 1 && f.Name != "output" && f.Name != "help" {
				common[key] = f
			}
		})
	}
	return common
}

// flagKey identifies flags of the same name and meaning.
func flagKey(f *pflag.Flag) string { return f.Name + " " + f.Usage }

// describe writes a command's section.
func describe(page *strings.Builder, command *cobra.Command, common map[string]*pflag.Flag) {
	if command.HasParent() {
		if !command.Runnable() {
			return
		}
		fmt.Fprintf(page, "\n## %s\n", strings.TrimPrefix(command.CommandPath(), "dxctl "))
	}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(command.Long), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			fmt.Fprintf(page, "\n```text\n%s\n```\n", paragraph)
			continue
		}
		fmt.Fprintf(page, "\n%s\n", strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`).Replace(paragraph))
	}
	var own strings.Builder
	table := tabwriter.NewWriter(&own, 0, 0, 2, ' ', 0)
	elsewhere := map[string][]string{}
	formats := ""
	command.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		var place string
		switch {
		case f.Name == "output":
			list, _, _ := strings.Cut(strings.TrimPrefix(f.Usage, "output format: "), " (default ")
			formats = "  -o " + strings.NewReplacer(", ", "|", " or ", "|").Replace(list) + "\n"
			return
		case common[flagKey(f)] != nil:
			if name, _ := pflag.UnquoteUsage(f); slices.Contains([]string{"FILE", "DIRECTORY", "SOCKET"}, name) {
				return
			}
			place = "[Common](#common-flags)"
		case strings.Contains(f.Usage, "(key "):
			place = "[Keys](configuration.md#keys)"
		default:
			writeFlag(table, f)
			return
		}
		elsewhere[place] = append(elsewhere[place], "`--"+f.Name+"`")
	})
	table.Flush()
	example := command.Example
	if bare := strings.TrimSuffix(strings.TrimSpace(example), " -o json"); !command.HasParent() || bare == command.CommandPath() {
		example = "" // The other sections, or the heading and the formats, show it.
	}
	if block := strings.Trim(example+"\n\n"+formats+own.String(), "\n"); block != "" {
		fmt.Fprintf(page, "\n```text\n%s\n```\n", block)
	}
	for _, place := range slices.Sorted(maps.Keys(elsewhere)) {
		list := place + ": " + strings.Join(elsewhere[place], ", ")
		fmt.Fprintf(page, "\n%s", regexp.MustCompile(`(.{1,100})(?: |$)`).ReplaceAllString(list, "$1\n"))
	}
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
