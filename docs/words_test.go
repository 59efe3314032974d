//go:build unix

package docs

import (
	"regexp"
	"testing"
)

// banned are words that this project's documentation does not use; .golangci.yaml has those for code.
var banned = regexp.MustCompile(`(?i)\b(anew|folders?|mend(s|ed)?|nobody|somebody|whoever|tells?( whether| of)|(is|are) told|counts? more than|to be had)\b`)

// enforceWords makes TestWords fail. Set it when `go test ./docs -run TestWords -v` lists nothing.
const enforceWords = false

func TestWords(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, line := range page.lines {
			word := banned.FindString(line.text)
			switch {
			case word == "":
			case enforceWords:
				t.Errorf("%s:%d: %q", page.file, line.number, word)
			default:
				t.Logf("%s:%d: %q", page.file, line.number, word)
			}
		}
	}
}
