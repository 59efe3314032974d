// Command generate writes docs/config.schema.json and the tables of
// docs/configuration.md. Its only argument is the folder.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"directx-nri/internal/config/reference"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "generate: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("the only argument is the folder of the documentation")
	}
	schema, err := reference.Schema()
	if err != nil {
		return err
	}
	path := filepath.Join(args[0], "configuration.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	filled, err := reference.Fill(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(args[0], "config.schema.json"), schema, 0o644),
		os.WriteFile(path, []byte(filled), 0o644),
	)
}
