//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inBash is what bash does when a person presses TAB behind words. The functions
// stand for the package bash-completion and for the program, whose answer is in
// the file ANSWER.
const inBash = `
_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}; }
__ltrim_colon_completions() { :; }
compopt() { :; }
dxctl() { cat "$ANSWER"; }
source "$SCRIPT"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9 COMP_LINE="$*"
__start_dxctl
printf '%s\n' "${COMPREPLY[@]}"
`

// TestCompletionInBash has a location path come out as it can be typed: its
// parentheses mean something to bash.
func TestCompletionInBash(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	inventory, dir, _ := aNode(t)
	script, err := ask(t, "completion", "bash")
	if err != nil {
		t.Fatal(err)
	}
	for typed, test := range map[string]struct{ begun, want string }{
		`PCIROOT\(0\)#PCI\(1`: {"PCIROOT(0)#PCI(1", `PCIROOT\(0\)#PCI\(1B00\)`},
		`ROOT\\BASIC`:         {`ROOT\BASIC`, `ROOT\\BASICRENDER\\0000`},
	} {
		answer, err := ask(t, "__complete", "devices", "--inventory", inventory, test.begun)
		if err != nil {
			t.Fatal(err)
		}
		answer, _, _ = strings.Cut(answer, "Completion ended") // That goes to standard error.
		files := map[string]string{"SCRIPT": script, "ANSWER": answer}
		command := exec.CommandContext(t.Context(), bash, "-c", inBash, "bash", "dxctl", "devices", typed)
		command.Env = os.Environ()
		for name, text := range files {
			file := filepath.Join(dir, name)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			command.Env = append(command.Env, name+"="+file)
		}
		out, err := command.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, %v, want %s", typed, got, err, test.want)
		}
	}
}
