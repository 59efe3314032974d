// Command demo shows the main job of directx-nri on any Linux machine, with no
// root, GPU, Windows, kubelet or containerd: the two real programs run, around
// them a small stand-in for the kubelet and NRI's own runtime library, and the
// GPUs are those of a sample inventory file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	bin := flag.String("bin", "bin", "folder with directx-advertiser and directx-nri")
	inventory := flag.String("inventory", "deployments/inventory/windows-g4dn.yaml", "inventory file of the simulated node")
	replicas := flag.Int("replicas", 4, "replicas of each GPU")
	flag.Parse()
	if err := run(*bin, *inventory, *replicas); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

func run(bin, inventory string, replicas int) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	// Sockets go there, and their paths must be short.
	folder, err := os.MkdirTemp("", "dxdemo")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	show := newScreen(os.Stdout)
	s, err := newScene(ctx, folder, bin, inventory, replicas, show)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return s.play(ctx)
}
