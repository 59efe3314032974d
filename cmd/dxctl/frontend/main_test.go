package frontend

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
)

// TestMain makes the test's own program one that is run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		os.Exit(fake(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// fake prints its arguments and what it is given, and ends with the status that
// its first argument is.
func fake(args []string) int {
	input, err := io.ReadAll(os.Stdin)
	fmt.Printf("%q %s", args, input)
	fmt.Fprint(os.Stderr, "said on stderr")
	status, _ := strconv.Atoi(args[0])
	if err != nil {
		return 99
	}
	return status
}
