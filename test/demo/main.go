// Command demo shows the main job of directx-nri on any Linux machine without
// root, GPU, Windows, kubelet or containerd. It runs the real advertiser, runtime
// shim and NRI plugin, which are beside it. Small stand-ins play the kubelet,
// containerd's CRI service and the shim that runs the container. The working directory
// is that of the repository: use "make demo".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	program, err := os.Executable()
	if err == nil {
		err = run(ctx, output(os.Stdout, os.Getenv("NO_COLOR")), ".", filepath.Dir(program))
	}
	cancel()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// colors are those of a terminal for what is printed.
var colors = map[string]*regexp.Regexp{
	"\x1b[1m":  regexp.MustCompile(`(?m)^\d+\. .*`),
	"\x1b[31m": regexp.MustCompile(`(?m)^ +- .*|refuses:`),
	"\x1b[32m": regexp.MustCompile(`(?m)^ +[+✔] .*`),
}

type colored struct{ io.Writer }

func (c colored) Write(text []byte) (int, error) {
	painted := text
	for color, part := range colors {
		painted = part.ReplaceAll(painted, []byte(color+"$0\x1b[0m"))
	}
	_, err := c.Writer.Write(painted)
	return len(text), err
}

// output returns file, with colors if it is a terminal: https://no-color.org
func output(file *os.File, noColor string) io.Writer {
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || noColor != "" {
		return file
	}
	return colored{file}
}

// run plays the demo with the product's programs in the directory bin.
func run(ctx context.Context, w io.Writer, repository, bin string) (err error) {
	dir, err := os.MkdirTemp("", "dxdemo") // Paths of sockets are short.
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d := &demo{w: w, dir: dir, bin: bin}
	defer func() { err = errors.Join(err, d.close()) }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := d.listGPUs(repository); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{d.startWindowsNode, d.onePod, d.otherPods, d.linuxPod} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	d.title("Summary")
	d.say("✔ The kubelet could allocate each GPU several times.")
	d.say("✔ A container got the GPU that was allocated to it, and its driver files.")
	d.say("✔ Without an allocation of its own, a container got no GPU.")
	d.say("✔ A Linux container got its GPU, too.")
	d.title("What next")
	d.say("go run ./cmd/dxctl devices  list the GPUs of this machine")
	d.say("sudo make e2e               the same with the real kubelet, containerd and runc")
	d.say("README.md                   install it on a Windows node, in WSL 2 or on a Linux VM")
	return nil
}

// demo is what the parts of the demo share.
type demo struct {
	w        io.Writer
	dir, bin string
	step     int
	// inventory is the absolute path of the Windows node's inventory file.
	inventory string
	// driverFiles is the number of files that the driver of its GPUs lists.
	driverFiles int
	windows     *node
	processes   []*exec.Cmd
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

// start starts one of our programs, whose output goes to a log file.
func (d *demo) start(name string, args ...string) error {
	log, err := os.Create(d.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	p := exec.Command(filepath.Join(d.bin, name), args...)
	p.Stdout, p.Stderr = log, log
	d.processes = append(d.processes, p)
	return p.Start()
}

// close ends the programs and the stand-ins. Its error has the log of a program that
// failed.
func (d *demo) close() error {
	var errs []error
	for _, p := range d.processes {
		err := p.Process.Signal(syscall.SIGTERM)
		if waitErr := p.Wait(); err != nil || waitErr != nil {
			log, _ := os.ReadFile(d.path(filepath.Base(p.Path) + ".log"))
			errs = append(errs, fmt.Errorf("%s: %w\n%s", p.Path, errors.Join(err, waitErr), log))
		}
	}
	if d.windows != nil {
		d.windows.close()
	}
	return errors.Join(errs...)
}

// width is the number of columns that the output takes at most.
const width = 100

func (d *demo) title(format string, args ...any) {
	d.step++
	fmt.Fprintf(d.w, "\n%d. %s\n", d.step, fmt.Sprintf(format, args...))
}

func (d *demo) say(line string) { fmt.Fprintf(d.w, "   %s\n", line) }

// by prints what one of the programs does, wrapped.
func (d *demo) by(program, format string, args ...any) {
	line := fmt.Sprintf("   %-10s", program)
	for _, word := range strings.Fields(fmt.Sprintf(format, args...)) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			fmt.Fprintln(d.w, line)
			line = strings.Repeat(" ", 13)
		}
		line += " " + word
	}
	fmt.Fprintln(d.w, line)
}
