package cli

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/spf13/cobra"
)

func TestQuiet(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	command := &cobra.Command{Use: "prog", RunE: func(*cobra.Command, []string) error { return fmt.Errorf("run: %w", Quiet(3)) }}
	if status := run(t.Context(), command, nil, &out, &errs); status != 3 || out.Len()+errs.Len() > 0 {
		t.Errorf("status %d, %s%s", status, &out, &errs)
	}
}
