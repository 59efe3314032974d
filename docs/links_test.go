//go:build unix

package docs

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"
)

// page is a Markdown file of the repository.
type page struct {
	file  string // from the repository's root, with slashes
	lines []line
}

// line is a line of a page. Fence is the language of the block that it is in, "-"
// for a block without one, and "" outside of blocks.
type line struct {
	number int
	text   string
	fence  string
}

// pages reads all Markdown files of the repository.
func pages(t *testing.T) []page {
	t.Helper()
	var found []page
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", ".parts", "out", "bin", "testdata"}, entry.Name()) {
			return fs.SkipDir
		}
		if entry.IsDir() || filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := filepath.Rel("..", name)
		if err != nil {
			return err
		}
		found = append(found, page{filepath.ToSlash(file), lines(string(text))})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 10 {
		t.Fatalf("the repository has %d pages only", len(found))
	}
	return found
}

// lines splits a page, with the fenced block of each line. The fences are
// left out.
func lines(text string) []line {
	var list []line
	fence := ""
	for i, text := range strings.Split(text, "\n") {
		language, isFence := strings.CutPrefix(listItem.ReplaceAllString(text, ""), "```")
		switch {
		case isFence && fence != "":
			fence = ""
		case isFence && language == "":
			fence = "-"
		case isFence:
			fence = language
		default:
			list = append(list, line{i + 1, text, fence})
		}
	}
	return list
}

var (
	// listItem is what stands before an item's text, such as a block's fence.
	listItem   = regexp.MustCompile(`^\s*(?:(?:\d+\.|[-*])\s+)?`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	link       = regexp.MustCompile(`\]\(([^()\s]+(?:\([^()\s]*\)[^()\s]*)*)\)`)
	linkText   = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	ownAnchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

// Each link within the repository leads to a file that is there, and to a heading
// of it where it names one.
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
				target := match[1]
				if strings.Contains(target, ":") {
					continue // Another site's.
				}
				file, anchor, named := strings.Cut(target, "#")
				to := p.file
				if file != "" {
					to = path.Join(path.Dir(p.file), file)
				}
				if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(to))); err != nil {
					t.Errorf("%s:%d: %s: there is no %s", p.file, l.number, target, to)
					continue
				}
				if named && !anchors[to][anchor] {
					t.Errorf("%s:%d: %s: %s has no such heading", p.file, l.number, target, to)
				}
			}
		}
	}
}

// anchors returns what a link can name of the page: its headings as GitHub writes
// them, and anchors of its own.
func (p page) anchors() map[string]bool {
	found := map[string]bool{}
	for _, l := range p.lines {
		if l.fence != "" {
			continue
		}
		for _, match := range ownAnchor.FindAllStringSubmatch(l.text, -1) {
			found[match[1]] = true
		}
		heading := strings.TrimLeft(l.text, "#")
		if heading == l.text || !strings.HasPrefix(heading, " ") {
			continue
		}
		name := slug(heading)
		for i := 1; found[name]; i++ {
			name = slug(heading) + "-" + strconv.Itoa(i)
		}
		found[name] = true
	}
	return found
}

// slug returns a heading's anchor.
func slug(heading string) string {
	heading = linkText.ReplaceAllString(strings.TrimSpace(heading), "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func TestSlug(t *testing.T) {
	t.Parallel()
	for heading, want := range map[string]string{
		" Finding GPUs":                 "finding-gpus",
		" dxctl runtime configure":      "dxctl-runtime-configure",
		" microsoft.com/directx":        "microsoftcomdirectx",
		" Which GPU is mine?":           "which-gpu-is-mine",
		" `config.yaml`, and [more](x)": "configyaml-and-more",
	} {
		if got := slug(heading); got != want {
			t.Errorf("%q: %q, want %q", heading, got, want)
		}
	}
}

// prompts are what a command begins with in a console block: that of a user, of
// root, and of PowerShell.
var prompts = []string{"$ ", "# ", "> "}

// command is one that a page shows.
type command struct {
	place string
	words []string
}

// commands returns the commands of a page's console blocks, also those that a pipe
// or && adds.
func (p page) commands() []command {
	var found []command
	for i := 0; i < len(p.lines); i++ {
		l := p.lines[i]
		text := strings.TrimSpace(l.text)
		if l.fence != "console" || !slices.ContainsFunc(prompts, func(prompt string) bool { return strings.HasPrefix(text, prompt) }) {
			continue
		}
		text = text[2:]
		for strings.HasSuffix(text, `\`) && i+1 < len(p.lines) {
			i++
			text = strings.TrimSuffix(text, `\`) + " " + strings.TrimSpace(p.lines[i].text)
		}
		for _, words := range split(text) {
			found = append(found, command{p.file + ":" + strconv.Itoa(l.number), words})
		}
	}
	return found
}

// split returns the words of each command in a line of a shell. Redirections and
// comments are left out.
func split(text string) [][]string {
	var list [][]string
	var words []string
	var word strings.Builder
	var quote rune
	inWord := false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	for _, r := range text + "\n" {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case unicode.IsSpace(r):
			end()
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	var now []string
	skip := false
	for _, w := range words {
		switch {
		case w == "#":
			return append(list, now)
		case slices.Contains([]string{"|", "&&", "||", ";", "&"}, w):
			list, now, skip = append(list, now), nil, false
		case w == ">" || w == ">>" || w == "2>&1":
			skip = w != "2>&1"
		case skip:
			skip = false
		case len(now) == 0 && w == "sudo":
		default:
			now = append(now, strings.TrimSuffix(w, ";"))
		}
	}
	return append(list, now)
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][][]string{
		"dxctl devices   # the GPUs":           {{"dxctl", "devices"}},
		"sudo dxctl doctor > out && ls -l":     {{"dxctl", "doctor"}, {"ls", "-l"}},
		`ctr run --env "A=b c" x | grep 'd e'`: {{"ctr", "run", "--env", "A=b c", "x"}, {"grep", "d e"}},
	} {
		if got := split(text); !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// ours are the programs whose commands are tried.
var ours = []string{"dxctl", "directx-advertiser", "directx-nri"}

// Each command of ours that a page shows is one, and takes the flags that it is
// given there.
func TestCommandsOfOurs(t *testing.T) {
	t.Parallel()
	all := pages(t)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/")
	for _, program := range ours {
		build.Args = append(build.Args, "directx-nri/cmd/"+program)
	}
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	places := map[string][]string{}
	for _, p := range all {
		for _, c := range slices.Concat(p.commands(), p.inlineCommands()) {
			if program := programOf(c.words[0]); slices.Contains(ours, program) {
				words := strings.Join(append([]string{program}, c.words[1:]...), "\x00")
				places[words] = append(places[words], c.place)
			}
		}
	}
	if len(places) < 40 {
		t.Errorf("the pages have %d commands of ours only", len(places))
	}
	var at sync.WaitGroup
	turn := make(chan struct{}, 4)
	for _, words := range slices.Sorted(maps.Keys(places)) {
		at.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			if problem := try(dir, strings.Split(words, "\x00")); problem != "" {
				t.Errorf("%s: %s: %s", strings.Join(places[words], ", "), strings.ReplaceAll(words, "\x00", " "), problem)
			}
		})
	}
	at.Wait()
}

// programOf returns the name of the program that a word of a shell runs.
func programOf(word string) string {
	return strings.TrimSuffix(path.Base(strings.ReplaceAll(word, `\`, "/")), ".exe")
}

// inlineCommands returns the commands in running text. What has an ellipsis, or
// stands for any command, is none.
func (p page) inlineCommands() []command {
	var found []command
	for _, l := range p.lines {
		if l.fence != "" {
			continue
		}
		for _, code := range inlineCode.FindAllString(l.text, -1) {
			code = strings.Trim(code, "`")
			if strings.Contains(code, "…") || strings.Contains(code, "...") || strings.Contains(code, "|") || strings.Contains(code, "COMMAND") || !strings.Contains(code, " ") {
				continue
			}
			for _, words := range split(code) {
				if len(words) > 0 {
					found = append(found, command{p.file + ":" + strconv.Itoa(l.number), words})
				}
			}
		}
	}
	return found
}

// commandGroup is the usage of a command that has others below it.
var commandGroup = regexp.MustCompile(`(?m)^  (.*) \[command\]$`)

// try has a program parse its arguments, and returns what is wrong with them. Flags
// are parsed before help is given. It is asked for twice: a flag at the end, whose
// value a text leaves out, takes the first for it.
func try(dir string, words []string) string {
	args := words[1:]
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	ask := exec.Command(filepath.Join(dir, words[0]), append(slices.Clone(args), "--help", "--help")...)
	ask.Dir = dir
	out, err := ask.CombinedOutput()
	if err != nil {
		return strings.TrimSpace(string(out))
	}
	if !strings.Contains(string(out), "Usage:\n") {
		return "it says no usage"
	}
	// A group of commands that is followed by a word has no such command.
	group := commandGroup.FindStringSubmatch(string(out))
	if named := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return strings.HasPrefix(word, "-") }); group != nil && len(named) > len(strings.Fields(group[1])) {
		return "there is no such command"
	}
	return ""
}

var (
	makeTarget  = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	makeCommand = regexp.MustCompile("`make ([a-z0-9-]+)[^`]*`")
)

// Each make target that a page names is there.
func TestMakeTargets(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, match := range makeTarget.FindAllStringSubmatch(string(makefile), -1) {
		targets[match[1]] = true
	}
	for _, p := range pages(t) {
		check := func(place, target string) {
			if !targets[target] && !strings.HasPrefix(target, "build-") {
				t.Errorf("%s: there is no target %s", place, target)
			}
		}
		for _, c := range p.commands() {
			if len(c.words) > 1 && c.words[0] == "make" {
				check(c.place, c.words[1])
			}
		}
		for _, l := range p.lines {
			if l.fence != "" {
				continue
			}
			for _, match := range makeCommand.FindAllStringSubmatch(l.text, -1) {
				check(p.file+":"+strconv.Itoa(l.number), match[1])
			}
		}
	}
}

// Each file of the repository that a command names is there: from the repository's
// root, or from the page's dir.
func TestFilesInCommands(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		for _, c := range p.commands() {
			for _, word := range c.words[min(1, len(c.words)):] {
				_, value, isFlag := strings.Cut(word, "=")
				if isFlag {
					word = value
				}
				first, _, inFolder := strings.Cut(word, "/")
				if !inFolder || !slices.Contains([]string{"deployments", "docs", "test", "discovery", "helm", "manifests", "examples", "inventory", "config", "linux", "windows"}, first) {
					continue
				}
				_, fromRoot := os.Stat(filepath.Join("..", word))
				_, fromPage := os.Stat(filepath.Join("..", path.Dir(p.file), word))
				if fromRoot != nil && fromPage != nil {
					t.Errorf("%s: there is no %s", c.place, word)
				}
			}
		}
	}
}

// Each value that a command sets for the chart is one of it.
func TestChartValuesInCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../deployments/helm/directx-nri/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		for _, c := range slices.Concat(p.commands(), p.inlineCommands()) {
			if c.words[0] != "helm" {
				continue
			}
			for i, word := range c.words {
				set, inOne := strings.CutPrefix(word, "--set=")
				if word == "--set" && i+1 < len(c.words) {
					set, inOne = c.words[i+1], true
				}
				if !inOne {
					continue
				}
				for assignment := range strings.SplitSeq(set, ",") {
					key, _, _ := strings.Cut(assignment, "=")
					if !has(values, strings.Split(key, ".")) {
						t.Errorf("%s: the chart has no value %s", c.place, key)
					}
				}
			}
		}
	}
}

// has reports whether the values have a key. What is below an empty table is the
// user's.
func has(values map[string]any, key []string) bool {
	value, ok := values[key[0]]
	if !ok || len(key) == 1 {
		return ok
	}
	below, isTable := value.(map[string]any)
	return isTable && (len(below) == 0 || has(below, key[1:])) || value == nil
}
