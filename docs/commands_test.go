//go:build unix

package docs

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/shlex"
	"sigs.k8s.io/yaml"
)

// command is one that a page shows: in a block after a prompt, or in running text.
type command struct {
	place string
	words []string
}

// commands returns the commands of a page, also those after a pipe or &&.
func (p page) commands(t *testing.T) []command {
	t.Helper()
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
			words, err := shlex.Split(text)
			if err != nil && l.fence != "" {
				t.Errorf("%s: %v", l.place, err)
			}
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
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../deployments/helm/directx-nri/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	ours := map[string][]string{}
	for _, p := range pages(t) {
		for _, c := range p.commands(t) {
			program := strings.TrimSuffix(path.Base(strings.ReplaceAll(c.words[0], `\`, "/")), ".exe")
			switch program {
			case "dxctl", "directx-advertiser", "directx-nri":
				words := strings.Join(append([]string{program}, c.words[1:]...), "\x00")
				ours[words] = append(ours[words], c.place)
			case "make":
				target := strings.Join(c.words[1:min(2, len(c.words))], "")
				if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).Match(makefile) {
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
	if len(ours) < 30 {
		t.Errorf("the pages have %d commands of ours only", len(ours))
	}
	checkOurs(t, ours)
}

func checkFile(t *testing.T, place, dir, word string) {
	t.Helper()
	first, _, below := strings.Cut(word, "/")
	if !below || !slices.Contains([]string{"deployments", "docs", "test", "discovery", "helm", "manifests", "examples", "inventory", "config", "linux", "windows", "nvidia-smi"}, first) {
		return
	}
	_, fromRoot := os.Stat(filepath.Join("..", word))
	_, fromPage := os.Stat(filepath.Join("..", dir, word))
	if fromRoot != nil && fromPage != nil {
		t.Errorf("%s: there is no %s", place, word)
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

// checkOurs checks commands of our programs, words with \x00 between them. Their
// values are the places.
func checkOurs(t *testing.T, commands map[string][]string) {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "directx-nri/cmd/dxctl", "directx-nri/cmd/directx-advertiser", "directx-nri/cmd/directx-nri")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, words := range slices.Sorted(maps.Keys(commands)) {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if problem := try(dir, strings.Split(words, "\x00")); problem != "" {
				t.Errorf("%s: %s: %s", strings.Join(commands[words], ", "), strings.ReplaceAll(words, "\x00", " "), problem)
			}
		})
	}
	running.Wait()
}

// commandGroup is the usage of a command that has others below it.
var commandGroup = regexp.MustCompile(`(?m)^  (.*) \[command\]$`)

// try returns what is wrong with a command. Programs parse flags before they print
// help. It is requested twice: a flag at the end, whose value a text leaves out, takes
// the first for it.
func try(dir string, words []string) string {
	args := words[1:]
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	help := exec.Command(filepath.Join(dir, words[0]), append(slices.Clone(args), "--help", "--help")...)
	help.Dir = dir
	out, err := help.CombinedOutput()
	if err != nil {
		return strings.TrimSpace(string(out))
	}
	group := commandGroup.FindStringSubmatch(string(out))
	named := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return strings.HasPrefix(word, "-") })
	if !strings.Contains(string(out), "Usage:\n") || group != nil && len(named) > len(strings.Fields(group[1])) {
		return "there is no such command"
	}
	return ""
}
