//go:build unix

package docs

import (
	"regexp"
	"testing"
)

// banned are words that this project does not use; .golangci.yaml has those for code.
var banned = regexp.MustCompile(`(?i)\b(anew|folders?|mend(s|ed)?|nobody|somebody|whoever|tells?( whether| of)|(is|are) told|counts? more than|to be had)\b`)

func TestWords(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, line := range page.lines {
			// A renamed key is named as it was.
			if word := banned.FindString(inlineCode.ReplaceAllString(line.text, "")); word != "" && line.fence == "" {
				t.Errorf("%s:%d: %q", page.file, line.number, word)
			}
		}
	}
}
