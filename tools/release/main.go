// Command release writes what is released of directx-nri: image archives,
// zips and tarballs, the chart's package, lists of what is in them, and
// checksums. `make images` and `make release` run it.
package main

import (
	"context"
	"fmt"
	"os"
)

func main() {
	if err := newCommand().ExecuteContext(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}
