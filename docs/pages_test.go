//go:build unix

// Package docs has the tests of what the pages say.
package docs

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
)

// page is a Markdown file of the repository.
type page struct {
	file  string // from the repository's root, with slashes
	lines []line
}

// line is a line of a page. fence is the language of its fenced block, "-" for a
// block without one, and "" outside of blocks.
type line struct {
	place string // file:line
	text  string
	fence string
}

var (
	fenceLine  = regexp.MustCompile("^\\s*(?:(?:\\d+\\.|[-*])\\s+)?```(.*)")
	inlineCode = regexp.MustCompile("`([^`]+)`")
	link       = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)`)
	linkText   = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// shellWord is a word of a command line, of which parts can be quoted.
var shellWord = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`)

// shellWords returns the words of a command line without quotation marks, up to a comment. It keeps
// backslashes, which are separators in PowerShell's paths.
func shellWords(line string) []string {
	words := shellWord.FindAllString(line, -1)
	if comment := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(word, "#") }); comment >= 0 {
		words = words[:comment]
	}
	for i, word := range words {
		words[i] = strings.NewReplacer("'", "", `"`, "").Replace(word)
	}
	return words
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages reads all Markdown files of the repository.
func pages(t *testing.T) []page {
	t.Helper()
	var found []page
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && slices.Contains([]string{".git", ".parts", "out", "bin", "testdata"}, entry.Name()) {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(name) != ".md" {
			return err
		}
		file := strings.TrimPrefix(filepath.ToSlash(name), "../")
		found = append(found, page{file, split(file, read(t, name))})
		return nil
	})
	if err != nil || len(found) < 10 {
		t.Fatalf("%d pages: %v", len(found), err)
	}
	return found
}

// split returns the lines of a page without those that begin and end fenced blocks.
func split(file, text string) []line {
	var list []line
	fence := ""
	for i, text := range strings.Split(text, "\n") {
		begin := fenceLine.FindStringSubmatch(text)
		switch {
		case begin == nil:
			list = append(list, line{file + ":" + strconv.Itoa(i+1), text, fence})
		case fence != "":
			fence = ""
		default:
			fence = cmp.Or(begin[1], "-")
		}
	}
	return list
}

// anchors returns the names of a page's headings as GitHub writes them.
func (p page) anchors() map[string]bool {
	found := map[string]bool{}
	for _, l := range p.lines {
		heading := strings.TrimLeft(l.text, "#")
		if l.fence != "" || heading == l.text || !strings.HasPrefix(heading, " ") {
			continue
		}
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkText.ReplaceAllString(strings.TrimSpace(heading), "$1"))
		found[slug] = true
	}
	return found
}

// Each link within the repository leads to a file that exists, and to a heading of
// it where it names one.
func TestLinks(t *testing.T) {
	t.Parallel()
	all := pages(t)
	anchors := map[string]map[string]bool{}
	for _, p := range all {
		anchors[p.file] = p.anchors()
	}
	for _, p := range all {
		for _, l := range p.lines {
			if l.fence != "" {
				continue
			}
			for _, match := range link.FindAllStringSubmatch(inlineCode.ReplaceAllString(l.text, "x"), -1) {
				file, anchor, named := strings.Cut(match[1], "#")
				if strings.Contains(file, ":") {
					continue // Another site's.
				}
				to := p.file
				if file != "" {
					to = path.Join(path.Dir(p.file), file)
				}
				if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(to))); err != nil || named && !anchors[to][anchor] {
					t.Errorf("%s: %s leads nowhere (%v)", l.place, match[1], err)
				}
			}
		}
	}
}

// command is one that a page shows: in a block after a prompt, or in running text.
type command struct {
	place string
	words []string
}

// commands returns the commands of a page, also those after a pipe or &&.
func (p page) commands() []command {
	var found []command
	for i := 0; i < len(p.lines); i++ {
		l := p.lines[i]
		text := strings.TrimSpace(l.text)
		var shown []string
		switch {
		// The prompts of a user, of root, and of PowerShell.
		case l.fence == "console" && len(text) > 2 && strings.ContainsAny(text[:1], "$#>") && text[1] == ' ':
			for strings.HasSuffix(text, `\`) && i+1 < len(p.lines) {
				i++
				text = strings.TrimSuffix(text, `\`) + " " + strings.TrimSpace(p.lines[i].text)
			}
			shown = []string{text[2:]}
		case l.fence == "":
			for _, code := range inlineCode.FindAllStringSubmatch(l.text, -1) {
				if !strings.ContainsAny(code[1], "…|") && strings.Contains(code[1], " ") {
					shown = append(shown, code[1])
				}
			}
		}
		for _, text := range shown {
			words := shellWords(text)
			for len(words) > 0 {
				end := slices.IndexFunc(words, func(word string) bool { return slices.Contains([]string{"|", "&&", "||", ";", ">"}, word) })
				if end < 0 {
					end = len(words)
				}
				if end > 0 {
					found = append(found, command{l.place, words[:end]})
				}
				words = words[min(end+1, len(words)):]
			}
		}
	}
	return found
}

// Commands of our programs have flags and subcommands that exist, make has its
// targets and the chart its values. The files of the repository that commands name
// exist, below its root or the page's directory.
func TestCommands(t *testing.T) {
	t.Parallel()
	makefile := read(t, "../Makefile")
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "../deployments/helm/directx-nri/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	dir := build(t, "dxctl", "directx-advertiser", "directx-nri")
	tried := map[string]bool{}
	for _, p := range pages(t) {
		for _, c := range p.commands() {
			program := strings.TrimSuffix(path.Base(strings.ReplaceAll(c.words[0], `\`, "/")), ".exe")
			switch program {
			case "dxctl", "directx-advertiser", "directx-nri":
				line := strings.Join(c.words, " ")
				if !tried[line] {
					tried[line] = true
					if problem := try(dir, program, c.words[1:]); problem != "" {
						t.Errorf("%s: %s: %s", c.place, line, problem)
					}
				}
			case "make":
				target := strings.Join(c.words[1:min(2, len(c.words))], "")
				if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).MatchString(makefile) {
					t.Errorf("%s: make has no target %q", c.place, target)
				}
			case "helm":
				checkValues(t, c, values)
			}
			for _, word := range c.words {
				checkFile(t, c.place, path.Dir(p.file), word[strings.Index(word, "=")+1:])
			}
		}
	}
	if len(tried) < 25 {
		t.Errorf("the pages have %d commands of ours only", len(tried))
	}
}

// build builds programs into the directory that it returns.
func build(t *testing.T, programs ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, program := range programs {
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "../cmd/"+program).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return dir
}

func checkFile(t *testing.T, place, dir, word string) {
	t.Helper()
	first, _, below := strings.Cut(path.Clean(word), "/")
	directories := strings.Fields("deployments docs test cmd internal advertiser decision discovery nri ocispec shim helm manifests examples inventory config linux windows nvidia-smi")
	if !below || !slices.Contains(directories, first) {
		return
	}
	_, fromRoot := os.Stat(filepath.Join("..", word))
	_, fromPage := os.Stat(filepath.Join("..", dir, word))
	if fromRoot != nil && fromPage != nil {
		t.Errorf("%s: there is no %s", place, word)
	}
}

// Pages show what dxctl prints on a node with two GPUs, each shared by two containers.
func TestOutputs(t *testing.T) {
	t.Parallel()
	state, dxctl := t.TempDir(), build(t, "dxctl")+"/dxctl"
	testutil.NoError(t, policy.Write(state, policy.Default()))
	records := paths.Allocations(state)
	recorder := allocationtest.Open(t, records)
	const gpu = `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00`
	for i, replica := range []string{"D8", "E0", "D8"} {
		id, err := recorder.Record(t.Context(), allocation.Record{
			Resource: "directx.microsoft.com/display",
			Replicas: []allocation.Replica{{ID: allocation.ReplicaID(allocation.GPUKey(gpu+replica), i/2), InstanceID: gpu + replica}},
		})
		name := fmt.Sprintf("game-%d", i+1)
		testutil.NoError(t, err)
		allocationtest.Bind(t, records, id, allocation.Holder{PodUID: name, Container: "main", PodNamespace: "default", PodName: name})
	}
	since := regexp.MustCompile(`\d+s\n`)
	for _, shown := range []struct{ page, command string }{{"../README.md", "devices"}, {"../README.md", "allocations"}, {"metrics.md", "allocations"}} {
		out, err := exec.Command(dxctl, shown.command, "--state-dir", state, "--inventory", "../deployments/inventory/windows-g4dn.yaml").CombinedOutput()
		want := "\n# dxctl " + shown.command + "\n" + since.ReplaceAllString(string(out), "3h\n")
		if err != nil || !strings.Contains(read(t, shown.page), want) {
			t.Errorf("%s does not show (%v):%s", shown.page, err, want)
		}
	}
}

// checkValues checks the values that a helm command sets.
func checkValues(t *testing.T, c command, values map[string]any) {
	t.Helper()
	for i, word := range c.words {
		set, inOne := strings.CutPrefix(word, "--set=")
		if word == "--set" && i+1 < len(c.words) {
			set, inOne = c.words[i+1], true
		}
		for assignment := range strings.SplitSeq(set, ",") {
			key, _, _ := strings.Cut(assignment, "=")
			if inOne && !has(values, strings.Split(key, ".")) {
				t.Errorf("%s: the chart has no value %s", c.place, key)
			}
		}
	}
}

// has reports whether the values have a key. What is below an empty mapping is the
// user's.
func has(values map[string]any, key []string) bool {
	value, ok := values[key[0]]
	if !ok || len(key) == 1 {
		return ok
	}
	below, isMapping := value.(map[string]any)
	return isMapping && (len(below) == 0 || has(below, key[1:])) || value == nil
}

// commandGroup is the usage of a command that has others below it.
var commandGroup = regexp.MustCompile(`(?m)^  (.*) \[command\]$`)

// try returns what is wrong with a command. Programs parse flags before they print
// help. It is requested twice: a flag at the end, whose value a text leaves out, takes
// the first for it.
func try(dir, program string, args []string) string {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	help := exec.Command(filepath.Join(dir, program), append(slices.Clone(args), "--help", "--help")...)
	help.Dir = dir
	out, err := help.CombinedOutput()
	if err != nil {
		return strings.TrimSpace(string(out))
	}
	group := commandGroup.FindStringSubmatch(string(out))
	named := slices.DeleteFunc(slices.Clone(args), func(word string) bool { return strings.HasPrefix(word, "-") })
	if !strings.Contains(string(out), "Usage:\n") || group != nil && 1+len(named) > len(strings.Fields(group[1])) {
		return "there is no such command"
	}
	return ""
}
