package main

import (
	"bytes"
	"fmt"
	"html"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

//go:generate go test -run ^TestDemo$ . -update

func TestDemo(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	if out, err := exec.Command("make", "-C", "../..", "build-demo", "DEMO="+bin).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := run(t.Context(), colored{&out}, "../..", bin); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	testutil.Golden(t, "../../docs/img/demo.svg", picture(out.String()))
}

// picture returns a picture of the output's first four steps and its summary.
func picture(out string) string {
	const head = `<svg xmlns="http://www.w3.org/2000/svg" width="830" height="%[1]d" viewBox="0 0 830 %[1]d" role="img" aria-label="Output of make demo">
<rect width="100%%" height="100%%" rx="6" fill="#1e2430"/>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" fill="#d5dae3" xml:space="preserve">
`
	shown := regexp.MustCompile(`(?s)\x1b\[1m5\..*(\x1b\[1m7\..*)\n\x1b\[1m8\..*`).ReplaceAllString("$ make demo\n"+out, "…\n\n$1")
	// The ID differs from run to run.
	shown = regexp.MustCompile(`=[0-9a-f]{32}`).ReplaceAllString(shown, "=e44c719fe7dbf91da26f41a33abeb817")
	shown = strings.NewReplacer("\x1b[1m", `<tspan fill="#ffffff" font-weight="bold">`, "\x1b[31m", `<tspan fill="#f28b82">`,
		"\x1b[32m", `<tspan fill="#8fd694">`, "\x1b[0m", `</tspan>`).Replace(html.EscapeString(shown))
	text, y := "", 6
	for line := range strings.Lines(shown) {
		if line == "\n" {
			y += 9
			continue
		}
		y += 18
		text += fmt.Sprintf("<text x=\"14\" y=\"%d\">%s</text>\n", y, strings.TrimSuffix(line, "\n"))
	}
	return fmt.Sprintf(head, y+16) + text + "</g></svg>\n"
}

func TestOutput(t *testing.T) {
	t.Parallel()
	terminal, err := os.Open(os.DevNull) // A character device, too.
	pipe, _, pipeErr := os.Pipe()
	testutil.NoError(t, err, pipeErr)
	if output(terminal, "") == terminal || output(terminal, "1") != terminal || output(pipe, "") != pipe {
		t.Error("colors without a terminal or with NO_COLOR, or no colors on a terminal")
	}
}
