package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

//go:generate go test -run ^TestDocs$ . -update

// TestDocs compares docs/cli.md with the commands' help. 'make generate' writes the page.
func TestDocs(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the defaults in the page are those on Linux")
	}
	file, page := filepath.Join("..", "..", "docs", "cli.md"), cliPage()
	if *update {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), page); diff != "" {
		t.Errorf("docs/cli.md is out of date; run 'make generate' (-docs +commands):\n%s", diff)
	}
}

// TestManPages writes a page for each command.
func TestManPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := ask(t, "man", dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dxctl.1", "dxctl-runtime-install.1"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Contains(text, []byte(".TH")) {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
}

// everyCommand returns command and all below it that are not hidden.
func everyCommand(command *cobra.Command) []*cobra.Command {
	commands := []*cobra.Command{command}
	for _, below := range command.Commands() {
		if below.IsAvailableCommand() {
			commands = append(commands, everyCommand(below)...)
		}
	}
	return commands
}

// cliPage returns docs/cli.md.
func cliPage() string {
	var page strings.Builder
	page.WriteString(`# dxctl

Generated from the commands' help by ` + "`make generate`" + `. The defaults are those on Linux.
`)
	commands := everyCommand(newCommand())
	shared := sharedFlags(commands)
	for _, command := range commands {
		describe(&page, command, shared)
		if command.Name() == "devices" {
			for _, object := range deviceObjects {
				page.WriteString("\n" + object.title + "\n\n| field | meaning |\n|---|---|\n")
				for _, name := range fields(object.of) {
					fmt.Fprintf(&page, "| `%s` | %s |\n", name, object.meaning[name])
				}
			}
		}
	}
	page.WriteString("\n## Common flags\n")
	for _, users := range slices.Sorted(maps.Keys(shared)) {
		fmt.Fprintf(&page, "\n%s:\n\n```text\n%s```\n", users, shared[users].FlagUsages())
	}
	return page.String()
}

// sharedFlags returns the flags that several commands have, by the names of these
// commands.
func sharedFlags(commands []*cobra.Command) map[string]*pflag.FlagSet {
	users := map[string][]string{}
	for _, command := range commands {
		command.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			users[f.Name+f.Usage+f.DefValue] = append(users[f.Name+f.Usage+f.DefValue], "`"+strings.TrimPrefix(command.CommandPath(), "dxctl ")+"`")
		})
	}
	shared := map[string]*pflag.FlagSet{}
	for _, command := range commands {
		command.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			list := users[f.Name+f.Usage+f.DefValue]
			if names := strings.Join(list, ", "); len(list) > 1 && f.Name != "output" && f.Name != "help" {
				if shared[names] == nil {
					shared[names] = pflag.NewFlagSet(names, pflag.ContinueOnError)
					shared[names].SortFlags = false
				}
				if shared[names].Lookup(f.Name) == nil {
					shared[names].AddFlag(f)
				}
			}
		})
	}
	return shared
}

// fields returns the names of a struct's fields in JSON; not those of another one
// within it.
func fields(of any) []string {
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeOf(of)) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && len(field.Index) == 1 {
			names = append(names, name)
		}
	}
	return names
}

// deviceObjects are what 'dxctl devices -o json' prints.
var deviceObjects = []struct {
	title   string
	of      any
	meaning map[string]string
}{
	{"Fields of a GPU as JSON or YAML:", deviceReport{}, map[string]string{
		"index":           "place in the list, from 0",
		"instanceID":      "Plug and Play device instance ID",
		"description":     "name",
		"kind":            "`display`, `compute` or `none`",
		"resource":        "extended resource that offers it",
		"replicas":        "number of containers that can share it",
		"notOffered":      "why no resource offers it",
		"display":         "whether it has the full WDDM driver model",
		"compute":         "whether it supports compute",
		"health":          "`healthy`, or the problem",
		"notes":           "what is unknown; the GPU can be used",
		"vendor":          "PCI vendor, or its ID in hexadecimal",
		"manufacturer":    "manufacturer according to the driver",
		"locationPath":    "PCIe location path",
		"luid":            "LUID of the adapter; changes at each boot",
		"dedicatedMemory": "in bytes",
		"integrated":      "whether it shares the processor's memory",
		"detachable":      "whether it can be unplugged",
		"software":        "whether it is a software renderer",
		"numaNode":        "closest NUMA node",
		"busNumber":       "PCI bus",
		"address":         "PCI device (upper 16 bits) and function",
		"status":          "Plug and Play `DN_` bits",
		"problem":         "Plug and Play problem code, or 0",
		"driverKey":       "driver's key below `HKLM\\SYSTEM\\CurrentControlSet\\Control\\Class`",
		"driverVersion":   "version of the driver package",
		"driverStorePath": "directory of the driver package",
		"system32":        "driver's 64-bit files: from `driverStorePath` to System32",
		"sysWOW64":        "driver's 32-bit files: from `driverStorePath` to SysWOW64",
		"deviceNodes":     "device nodes for Linux containers",
		"libraries":       "files and directories for Linux containers",
	}},
	{"Fields of a file:", fileReport{}, map[string]string{
		"source":      "path on the node",
		"destination": "path in the container",
		"missing":     "`true` if it does not exist (one GPU only)",
		"problem":     "why that is unknown (one GPU only)",
	}},
	{"One GPU by itself also has:", deviceDetail{}, map[string]string{
		"filesChecked": "whether its files were looked up",
	}},
	{"Fields of each line of `--watch -o json`:", deviceEvent{}, map[string]string{
		"time":    "RFC 3339",
		"event":   "`listed` (at the start), `added`, `removed` or `changed`",
		"device":  "the GPU, as above",
		"changes": "list of `field`, `from` and `to`",
	}},
}

func TestEachFieldOfADeviceIsExplained(t *testing.T) {
	t.Parallel()
	for _, object := range deviceObjects {
		names := fields(object.of)
		if diff := cmp.Diff(slices.Sorted(slices.Values(names)), slices.Sorted(maps.Keys(object.meaning))); diff != "" {
			t.Errorf("%T (-fields +explained):\n%s", object.of, diff)
		}
	}
}

// describe writes a command's section.
func describe(page *strings.Builder, command *cobra.Command, shared map[string]*pflag.FlagSet) {
	block := func(text string) {
		fmt.Fprintf(page, "\n```text\n%s\n```\n", strings.Trim(text, "\n"))
	}
	if command.HasParent() {
		if !command.Runnable() {
			return
		}
		fmt.Fprintf(page, "\n## %s\n", command.CommandPath())
	}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(command.Long), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			block(paragraph)
			continue
		}
		fmt.Fprintf(page, "\n%s\n", strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`).Replace(paragraph))
	}
	if command.HasExample() {
		block(command.Example)
	}
	own, common := pflag.NewFlagSet("", pflag.ContinueOnError), []string(nil)
	own.SortFlags = false
	command.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		for _, flags := range shared {
			if flags.Lookup(f.Name) != nil && flags.Lookup(f.Name).Usage == f.Usage {
				common = append(common, "`--"+f.Name+"`")
				return
			}
		}
		own.AddFlag(f)
	})
	if own.HasAvailableFlags() {
		page.WriteString("\nFlags:\n")
		block(own.FlagUsages())
	}
	if len(common) > 0 {
		fmt.Fprintf(page, "\n[Common flags](#common-flags): %s\n", strings.Join(common, ", "))
	}
}

func TestEachCommandExplainsItself(t *testing.T) {
	t.Parallel()
	for _, command := range everyCommand(newCommand()) {
		path := command.CommandPath()
		if command.Short == "" || strings.HasSuffix(command.Short, ".") {
			t.Errorf("%s: its short text is %q", path, command.Short)
		}
		if !command.Runnable() {
			continue
		}
		if !strings.Contains(command.Example, "dxctl ") {
			t.Errorf("%s has no example", path)
		}
		if command.Long == "" {
			t.Errorf("%s has no long text", path)
		}
		for _, flag := range []string{"output", "for", "shell", "container-os", "role"} {
			if _, completed := command.GetFlagCompletionFunc(flag); command.Flags().Lookup(flag) != nil && !completed {
				t.Errorf("%s: --%s is not completed", path, flag)
			}
		}
		for _, flag := range []string{"index", "luid", "path"} {
			if _, completed := command.GetFlagCompletionFunc(flag); command.Flags().Lookup(flag) != nil && !completed {
				t.Errorf("%s: --%s is not completed", path, flag)
			}
		}
	}
}

// TestExamplesAreRight checks that the flags in examples exist.
func TestExamplesAreRight(t *testing.T) {
	t.Parallel()
	for _, command := range everyCommand(newCommand()) {
		for line := range strings.SplitSeq(command.Example, "\n") {
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
			if err != nil || !called.Runnable() && called.HasParent() {
				t.Errorf("%s: example %q: %v", command.CommandPath(), line, err)
				continue
			}
			for _, word := range rest {
				name, _, _ := strings.Cut(word, "=")
				long, isLong := strings.CutPrefix(name, "--")
				short, isShort := strings.CutPrefix(name, "-")
				switch {
				case isLong && called.Flags().Lookup(long) == nil:
					t.Errorf("%s: example %q: there is no %s", command.CommandPath(), line, name)
				case !isLong && isShort && len(short) == 1 && called.Flags().ShorthandLookup(short) == nil:
					t.Errorf("%s: example %q: there is no %s", command.CommandPath(), line, name)
				}
			}
		}
	}
}

// TestFlagsOfOneNameMeanOneThing checks that a shorthand stands for one flag.
func TestFlagsOfOneNameMeanOneThing(t *testing.T) {
	t.Parallel()
	shorthands := map[string]map[string]bool{}
	for _, command := range everyCommand(newCommand()) {
		for _, line := range strings.Split(command.NonInheritedFlags().FlagUsages(), "\n") {
			var short, long string
			if _, err := fmt.Sscanf(strings.TrimSpace(line), "-%1s, --%s", &short, &long); err != nil {
				continue
			}
			if shorthands[short] == nil {
				shorthands[short] = map[string]bool{}
			}
			shorthands[short][long] = true
		}
	}
	for short, names := range shorthands {
		if len(names) > 1 {
			t.Errorf("-%s stands for %v", short, slices.Sorted(maps.Keys(names)))
		}
	}
}
