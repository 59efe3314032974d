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

// everyCommand returns command and all below it that a person is shown, in the
// order of help.
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
	root := newCommand()
	var page strings.Builder
	page.WriteString(`# dxctl

Generated from the commands' help by ` + "`make generate`" + `. The defaults are those on Linux; on Windows
` + "`dxctl COMMAND --help`" + ` prints its own.

`)
	for _, command := range everyCommand(root)[1:] {
		if command.Runnable() {
			fmt.Fprintf(&page, "- [`%s`](#%s) %s\n", command.CommandPath(), strings.ReplaceAll(command.CommandPath(), " ", "-"), command.Short)
		}
	}
	for _, command := range everyCommand(root) {
		describe(&page, command)
		if command.Name() == "devices" {
			for _, object := range deviceObjects {
				page.WriteString("\n" + object.title + "\n\n| field | meaning |\n|---|---|\n")
				for _, name := range fields(object.of) {
					fmt.Fprintf(&page, "| `%s` | %s |\n", name, object.meaning[name])
				}
			}
		}
	}
	return page.String()
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
	{"Fields of a GPU as JSON or YAML (what is not known is left out):", deviceReport{}, map[string]string{
		"index":           "place in the list, from 0; `--index` and `DIRECTX_VISIBLE_DEVICES` count by it",
		"instanceID":      "Plug and Play's device instance ID; the same after a reboot",
		"description":     "name for people",
		"kind":            "`display`, `compute` or `none`; the rules for resources go by it",
		"resource":        "extended resource that offers it, by the rules of the configuration",
		"replicas":        "how many containers may share it",
		"notOffered":      "why no resource offers it",
		"display":         "whether it has the full WDDM driver model",
		"compute":         "whether it can be computed on",
		"health":          "`healthy`, or what is wrong",
		"notes":           "list of what is not known of it, or was passed over; it can be used all the same",
		"vendor":          "name of the PCI vendor, or its ID in hexadecimal",
		"manufacturer":    "what the driver calls the manufacturer",
		"locationPath":    "PCIe location path, by which a Windows container is given it",
		"luid":            "LUID of the adapter; another one after each boot",
		"dedicatedMemory": "own memory, in bytes",
		"integrated":      "whether it shares the processor's memory",
		"detachable":      "whether it can be unplugged while the node runs",
		"software":        "whether it is a software renderer",
		"numaNode":        "NUMA node that it is closest to",
		"busNumber":       "PCI bus",
		"address":         "PCI device in the upper 16 bits, function in the lower",
		"status":          "Plug and Play's `DN_` bits",
		"problem":         "Plug and Play's problem code, 0 for none",
		"driverKey":       "the driver's key below `HKLM\\SYSTEM\\CurrentControlSet\\Control\\Class`",
		"driverVersion":   "version of the driver package",
		"driverStorePath": "folder of the driver package",
		"system32":        "list of the driver's files for 64-bit programs, sources relative to `driverStorePath`, destinations to System32",
		"sysWOW64":        "list of those for 32-bit programs, destinations relative to SysWOW64",
		"deviceNodes":     "list of device nodes for a Linux container",
		"libraries":       "list of files and folders for a Linux container",
	}},
	{"Fields of a file:", fileReport{}, map[string]string{
		"source":      "where it is on the node",
		"destination": "where it is in the container",
		"missing":     "`true` when it is not on disk; a container starts without it (one GPU by itself only)",
		"problem":     "why it could not be looked for (one GPU by itself only)",
	}},
	{"One GPU by itself has also:", deviceDetail{}, map[string]string{
		"filesChecked": "whether its files were looked for on disk",
	}},
	{"Fields of each line of `--watch -o json`:", deviceEvent{}, map[string]string{
		"time":    "when it was told, RFC 3339",
		"event":   "`listed` (at the start), `added`, `removed` or `changed`",
		"device":  "the GPU, as above; as it was when it went",
		"changes": "list of what changed: `field`, and its value `from` and `to`, `null` for none",
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
func describe(page *strings.Builder, command *cobra.Command) {
	block := func(text string) {
		fmt.Fprintf(page, "\n```text\n%s\n```\n", strings.Trim(text, "\n"))
	}
	if command.HasParent() {
		fmt.Fprintf(page, "\n## %s\n", command.CommandPath())
	}
	text := command.Long
	if text == "" {
		text = command.Short + "."
	}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(paragraph, "  ") {
			block(paragraph)
			continue
		}
		fmt.Fprintf(page, "\n%s\n", strings.NewReplacer("<", "&lt;", "*", `\*`, "_", `\_`).Replace(paragraph))
	}
	if command.Runnable() {
		block(command.UseLine())
	}
	if command.HasExample() {
		page.WriteString("\nExamples:\n")
		block(command.Example)
	}
	if flags := command.NonInheritedFlags(); flags.HasAvailableFlags() {
		page.WriteString("\nFlags:\n")
		block(flags.FlagUsages())
	}
}

// TestEachCommandExplainsItself has no command come without what a person needs to
// use it.
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
		if command.Long == "" && command.Parent().Name() != "completion" {
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

// TestExamplesAreRight has the flags in each example be there.
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

// TestFlagsOfOneNameMeanOneThing has a flag not be something else in another
// command.
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
