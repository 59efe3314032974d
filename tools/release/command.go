package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"directx-nri/tools/release/internal/dist"
	"directx-nri/tools/release/internal/images"
	"directx-nri/tools/release/internal/notices"
	"directx-nri/tools/release/internal/product"
)

// options are the flags that the commands share.
type options struct {
	build     images.Build
	created   int64
	bin       string
	root      string
	out       string
	platforms []string
}

func newCommand() *cobra.Command {
	command := &cobra.Command{
		Use:           "release",
		Short:         "write what is released of directx-nri",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	command.AddCommand(newImages(), newDocuments(), newRelease())
	return command
}

func (o *options) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.build.Version, "version", "", "the version, such as v0.1.0")
	flags.StringVar(&o.build.Revision, "revision", "", "the commit, for labels")
	flags.StringVar(&o.build.Source, "source", "", "URL of the sources, for labels")
	flags.StringVar(&o.build.Repository, "image", "docker.io/library/"+product.Name, "name of the image in the archives, without tag")
	flags.Int64Var(&o.created, "created", 0, "the time that everything is given, in seconds since 1970: the commit's, or SOURCE_DATE_EPOCH")
	flags.StringVar(&o.root, "root", ".", "the repository")
	flags.StringVar(&o.bin, "bin", "bin", "folder of the programs, with one folder for each platform")
	flags.StringVar(&o.out, "out", "", "folder to write to")
	for _, name := range []string{"version", "out"} {
		if err := command.MarkFlagRequired(name); err != nil {
			command.RunE = func(*cobra.Command, []string) error { return err }
		}
	}
}

// load reads the programs for the platforms.
func (o *options) load(ctx context.Context) ([]images.Programs, error) {
	if err := o.build.Check(); err != nil {
		return nil, err
	}
	o.build.Created = time.Unix(o.created, 0).UTC()
	tree, err := sources(ctx, o.root)
	if err != nil {
		return nil, err
	}
	var loaded []images.Programs
	for _, text := range o.platforms {
		platform, err := product.ParsePlatform(text)
		if err != nil {
			return nil, err
		}
		programs, err := images.LoadPrograms(o.build, filepath.Join(o.bin, platform.String()), o.root, platform, tree)
		if err != nil {
			return nil, err
		}
		loaded = append(loaded, programs)
	}
	return loaded, nil
}

// sources asks Go, of the version that the repository is built with, where the
// sources are.
func sources(ctx context.Context, root string) (notices.Tree, error) {
	ask := exec.CommandContext(ctx, "go", "env", "-json", "GOMODCACHE", "GOROOT", "GOVERSION")
	ask.Dir = root
	answer, err := ask.Output()
	if err != nil {
		return notices.Tree{}, fmt.Errorf("asking Go where modules' sources are: %w", err)
	}
	var tree notices.Tree
	if err := json.Unmarshal(answer, &tree); err != nil {
		return notices.Tree{}, fmt.Errorf("reading what Go says about its folders: %w", err)
	}
	return tree, nil
}

func newImages() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "images",
		Short: "write image archives, one for each platform, and one with all of them",
		Args:  cobra.NoArgs,
	}
	command.RunE = func(command *cobra.Command, _ []string) error {
		programs, err := o.load(command.Context())
		if err != nil {
			return err
		}
		written, err := images.Write(o.out, product.Name+"-"+o.build.Version, o.build, programs)
		if err != nil {
			return err
		}
		lists, err := images.WriteSBOMs(o.out, o.build, programs)
		report(command, append(written, lists...))
		return err
	}
	o.add(command)
	command.Flags().StringSliceVar(&o.platforms, "platform", imagePlatforms(), "platforms to write images for")
	return command
}

// imagePlatforms are those of the released image.
func imagePlatforms() []string { return []string{"linux-amd64", "linux-arm64", "windows-amd64"} }

func newDocuments() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "documents",
		Short: "write licences, notices and SBOMs alone, a folder for each platform, for images that are built otherwise",
		Args:  cobra.NoArgs,
	}
	command.RunE = func(command *cobra.Command, _ []string) error {
		programs, err := o.load(command.Context())
		if err != nil {
			return err
		}
		written, err := images.WriteDocuments(o.out, programs)
		report(command, written)
		return err
	}
	o.add(command)
	command.Flags().StringSliceVar(&o.platforms, "platform", imagePlatforms(), "platforms to write documents for")
	return command
}

func newRelease() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "release",
		Short: "write everything that is released into a folder of its own",
		Args:  cobra.NoArgs,
	}
	command.RunE = func(command *cobra.Command, _ []string) error {
		if err := dist.CheckVersion(o.build.Version); err != nil {
			return err
		}
		programs, err := o.load(command.Context())
		if err != nil {
			return err
		}
		if err := dist.Clear(o.out); err != nil {
			return err
		}
		written, err := o.release(command.Context(), programs)
		report(command, written)
		return err
	}
	o.add(command)
	command.Flags().StringSliceVar(&o.platforms, "platform", append(imagePlatforms(), "windows-arm64"), "platforms to write archives of programs for")
	return command
}

// release writes everything and returns the paths.
func (o *options) release(ctx context.Context, programs []images.Programs) ([]string, error) {
	reading, err := dist.Reading(o.root, o.build)
	if err != nil {
		return nil, err
	}
	completions, err := dist.Completions(ctx, filepath.Join(o.bin, runtime.GOOS+"-"+runtime.GOARCH, "dxctl"))
	if err != nil {
		return nil, err
	}
	reading = append(reading, completions...)
	var (
		written  []string
		forImage []images.Programs
	)
	for _, p := range programs {
		target, err := dist.Programs(o.out, o.build, p, reading)
		if err != nil {
			return written, err
		}
		written = append(written, target)
		if slices.Contains(imagePlatforms(), p.Platform.String()) {
			forImage = append(forImage, p)
		}
	}
	target, err := dist.Chart(o.out, o.build, o.root)
	if err != nil {
		return written, err
	}
	written = append(written, target)
	archives, err := images.Write(o.out, product.Name+"-image-"+o.build.Version, o.build, forImage)
	if err != nil {
		return written, err
	}
	lists, err := images.WriteSBOMs(o.out, o.build, programs)
	if err != nil {
		return written, err
	}
	if target, err = dist.Checksums(o.out); err != nil {
		return written, err
	}
	return append(slices.Concat(written, archives, lists), target), nil
}

func report(command *cobra.Command, written []string) {
	for _, name := range written {
		fmt.Fprintln(command.OutOrStdout(), name)
	}
}
