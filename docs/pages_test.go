//go:build unix

// Package docs has the tests of what the pages say.
package docs

import (
	"cmp"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
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
	// banned are words that this project does not use; .golangci.yaml has those for code.
	banned = regexp.MustCompile(`(?i)\b(anew|folders?|mend(s|ed)?|nobody|somebody|whoever|tells?( whether| of)|(is|are) told|counts? more than|to be had)\b`)
)

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
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file := strings.TrimPrefix(filepath.ToSlash(name), "../")
		found = append(found, page{file, split(file, string(text))})
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
		name := slug
		for i := 1; found[name]; i++ {
			name = slug + "-" + strconv.Itoa(i)
		}
		found[name] = true
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

func TestWords(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, line := range page.lines {
			// A renamed key is named as it was.
			if word := banned.FindString(inlineCode.ReplaceAllString(line.text, "")); word != "" && line.fence == "" {
				t.Errorf("%s: %q", line.place, word)
			}
		}
	}
}
