package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/grpc/status"

	"directx-nri/advertiser"
	"directx-nri/cmd/dxctl/specdiff"
	"directx-nri/discovery"
	"directx-nri/internal/allocation"
	config "directx-nri/internal/config/compile"
	"directx-nri/internal/paths"
	"directx-nri/internal/winpath"
)

// patience is how long anything in the scene may take.
const patience = 30 * time.Second

// scene is the simulated node.
type scene struct {
	folder, bin, inventory string
	replicas               int
	show                   *screen
	devices                []discovery.Device
	pods                   int

	kubelet    *kubelet
	runtime    *runtime
	plugin     *program
	advertiser *program
}

func newScene(ctx context.Context, folder, bin, file string, replicas int, show *screen) (*scene, error) {
	s := &scene{folder: folder, bin: bin, inventory: file, replicas: replicas, show: show}
	var err error
	if s.devices, err = config.ReadInventory(file); err != nil {
		return nil, err
	}
	for _, path := range []string{"plugins", "run", "root"} {
		if err := os.Mkdir(s.path(path), 0o700); err != nil {
			return nil, err
		}
	}
	if err := s.layDrivers(); err != nil {
		return nil, fmt.Errorf("lay the simulated driver's files: %w", err)
	}
	if s.kubelet, err = startKubelet(ctx, s.path("plugins")); err != nil {
		return nil, fmt.Errorf("start the kubelet's stand-in: %w", err)
	}
	if s.runtime, err = startRuntime(folder, s.path("nri.sock")); err != nil {
		return nil, errors.Join(fmt.Errorf("start NRI's runtime side: %w", err), s.close())
	}
	return s, nil
}

func (s *scene) path(name string) string { return filepath.Join(s.folder, name) }

// layDrivers makes the files that the devices' drivers list, empty, in a tree
// that stands for the node's root directory.
func (s *scene) layDrivers() error {
	for _, d := range s.devices {
		for _, f := range slices.Concat(d.System32, d.SysWOW64) {
			elements := strings.Split(winpath.Join(d.DriverStorePath, f.Source), `\`)
			file := filepath.Join(append([]string{s.path("root")}, elements...)...)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *scene) close() error {
	var errs []error
	for _, p := range []*program{s.advertiser, s.plugin} {
		if p != nil {
			errs = append(errs, p.stop())
		}
	}
	if s.runtime != nil {
		s.runtime.close()
	}
	if s.kubelet != nil {
		errs = append(errs, s.kubelet.close())
	}
	return errors.Join(errs...)
}

func (s *scene) play(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nothing happened for %s", patience))
	defer cancel()
	for _, act := range []func(context.Context) error{s.listDevices, s.startPrograms, s.onePod, s.anotherPod, s.impostors, s.withoutPlugin} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(s.show.w, "\n%s\n", s.show.paint(bold, "That was the real directx-advertiser and directx-nri. `make e2e` (root) does it with the real kubelet, containerd and runc."))
	return nil
}

func (s *scene) listDevices(context.Context) error {
	s.show.title("A simulated Windows node: the GPUs of %s", s.inventory)
	table := tabwriter.NewWriter(s.show.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "   DESCRIPTION\tVENDOR\tMEMORY\tDRIVER\tKIND\tLOCATION PATH\tFILES\tHEALTH")
	for _, d := range s.devices {
		fmt.Fprintf(table, "   %s\t%s\t%s\t%s\t%s\t%s\t%d + %d\t%s\n", d.Description, d.VendorID, humanize.IBytes(d.DedicatedMemory),
			d.DriverVersion, d.Kind(), d.LocationPath, len(d.System32), len(d.SysWOW64), d.Health)
	}
	return table.Flush()
}

func (s *scene) startPrograms(ctx context.Context) error {
	s.show.title("directx-advertiser offers %d replicas of each GPU to the kubelet", s.replicas)
	var err error
	if err = s.startPlugin(); err != nil {
		return err
	}
	s.advertiser, err = start(s.folder, filepath.Join(s.bin, "directx-advertiser"), "--inventory", s.inventory,
		"--replicas", fmt.Sprint(s.replicas), "--state-dir", s.path("state"), "--runtime-dir", s.path("run"),
		"--kubelet-dir", s.path("plugins"), "--nri-socket", s.path("nri.sock"))
	if err != nil {
		return err
	}
	lists, err := s.kubelet.await(ctx, advertiser.ResourceDisplay, advertiser.ResourceCompute)
	if err != nil {
		return errors.Join(err, s.advertiser.trouble())
	}
	// The advertiser has a guard to register with the runtime, too.
	if err := s.untilReady(ctx); err != nil {
		return errors.Join(err, s.advertiser.trouble())
	}
	for _, resource := range slices.Backward(slices.Sorted(maps.Keys(lists))) {
		s.show.who("kubelet", "%-30s allocatable: %d", resource, len(lists[resource]))
	}
	return nil
}

// untilReady returns when the kubelet may start containers with a GPU.
func (s *scene) untilReady(ctx context.Context) error {
	for {
		err := s.kubelet.preStart(ctx, advertiser.ResourceDisplay, nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *scene) startPlugin() error {
	var err error
	s.plugin, err = start(s.folder, filepath.Join(s.bin, "directx-nri"), "--inventory", s.inventory,
		"--state-dir", s.path("state"), "--runtime-dir", s.path("run"), "--nri-socket", s.path("nri.sock"),
		"--host-root", s.path("root"), "--container-os", "windows")
	return err
}

// admit does what the kubelet does for a pod with one container that asks for
// count GPUs, up to the creation of the container.
func (s *scene) admit(ctx context.Context, name string, count int) (pod, []string, error) {
	ids, answer, err := s.kubelet.allocate(ctx, advertiser.ResourceDisplay, count)
	if err != nil {
		return pod{}, nil, err
	}
	if err := s.kubelet.preStart(ctx, advertiser.ResourceDisplay, ids); err != nil {
		return pod{}, ids, err
	}
	s.pods++
	p := pod{name: name, uid: fmt.Sprintf("5f1c9f0e-0000-4000-8000-%012d", s.pods), container: "main", envs: answer.GetEnvs(), annots: answer.GetAnnotations()}
	return p, ids, nil
}

func (s *scene) onePod(ctx context.Context) error {
	s.show.title(`Pod "render" asks for one %s`, advertiser.ResourceDisplay)
	p, ids, err := s.admit(ctx, "render", 1)
	if err != nil {
		return err
	}
	s.show.who("kubelet", "chooses replica %s", ids[0])
	s.show.who("advertiser", "records it, and answers with a token and nothing else:")
	for _, key := range slices.Sorted(maps.Keys(p.envs)) {
		s.show.say("            %s=%s", key, p.envs[key])
	}
	if err := s.showRecord(p.envs); err != nil {
		return err
	}
	before, after, err := s.runtime.create(ctx, p)
	if err != nil {
		return err
	}
	s.show.who("directx-nri", "is asked when the container is created, finds the record, and adjusts the OCI spec:")
	text, err := specdiff.Unified("config.json as containerd wrote it", "config.json as Windows gets it", before, after)
	if err != nil {
		return err
	}
	s.show.diff(text)
	return nil
}

func (s *scene) showRecord(envs map[string]string) error {
	for _, value := range envs {
		token, err := allocation.ParseToken(value)
		if err != nil {
			return err
		}
		record, err := allocation.OpenStore(paths.Allocations(s.path("state"))).Get(token)
		if err != nil {
			return err
		}
		for _, r := range record.Replicas {
			s.show.say("            record %s: %s, GPU %s", token.ID(), record.Resource, r.InstanceID)
		}
	}
	return nil
}

func (s *scene) anotherPod(ctx context.Context) error {
	s.show.title(`Pod "train" asks for two: two different GPUs of one driver, its files once`)
	p, ids, err := s.admit(ctx, "train", 2)
	if err != nil {
		return err
	}
	for _, id := range ids {
		s.show.who("kubelet", "chooses replica %s", id)
	}
	_, after, err := s.runtime.create(ctx, p)
	if err != nil {
		return err
	}
	var spec struct {
		Windows struct {
			Devices []struct{ ID, IDType string }
		}
		Mounts []struct{ Destination string }
	}
	if err := json.Unmarshal(after, &spec); err != nil {
		return err
	}
	for _, d := range spec.Windows.Devices {
		s.show.who("directx-nri", "gives %s %s", d.IDType, d.ID)
	}
	s.show.who("directx-nri", "mounts %d runtime files", len(spec.Mounts)-1)
	return nil
}

func (s *scene) impostors(ctx context.Context) error {
	s.show.title("The allocation is the only key")
	stolen, _, err := s.admit(ctx, "owner", 1)
	if err != nil {
		return err
	}
	if _, _, err := s.runtime.create(ctx, stolen); err != nil {
		return err
	}
	s.show.say(`A pod that sets DIRECTX_VISIBLE_DEVICES=all itself starts, and gets nothing:`)
	before, after, err := s.runtime.create(ctx, pod{name: "hopeful", uid: "uid-hopeful", container: "main", envs: map[string]string{"DIRECTX_VISIBLE_DEVICES": "all"}})
	if err != nil {
		return err
	}
	if string(before) != string(after) {
		return errors.New("the container of a pod without an allocation was changed")
	}
	s.show.who("directx-nri", "config.json is the same byte for byte")
	s.show.say(`A pod that presents the token of pod "owner":`)
	thief := pod{name: "thief", uid: "uid-thief", container: "main", envs: stolen.envs}
	if _, _, err = s.runtime.create(ctx, thief); err == nil {
		return errors.New("a stolen token was honoured")
	}
	s.show.refused(status.Convert(err).Message())
	return nil
}

func (s *scene) withoutPlugin(ctx context.Context) error {
	s.show.title("With directx-nri gone, no container starts without the GPU that it was promised")
	if err := s.plugin.stop(); err != nil {
		return err
	}
	_, _, err := s.admit(ctx, "early", 1)
	if err == nil {
		return errors.New("a container may start although the plugin is gone")
	}
	s.show.refused(status.Convert(err).Message())
	s.show.say("The kubelet tries again by itself. directx-nri is started again:")
	if err := s.startPlugin(); err != nil {
		return err
	}
	if err := s.untilReady(ctx); err != nil {
		return err
	}
	s.show.who("kubelet", "the container may be created")
	return nil
}

// program is one of our two, running.
type program struct {
	command *exec.Cmd
	log     string
	stopped bool
}

func start(folder, path string, args ...string) (*program, error) {
	p := &program{command: exec.Command(path, args...), log: filepath.Join(folder, filepath.Base(path)+".log")}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.command.Stdout, p.command.Stderr = log, log
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("%w (is it built? 'make demo' does)", err)
	}
	return p, nil
}

// stop ends the program as a node does, and waits for it.
func (p *program) stop() error {
	if p.stopped {
		return nil
	}
	p.stopped = true
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(err, p.trouble())
	}
	if err := p.command.Wait(); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", filepath.Base(p.command.Path), err), p.trouble())
	}
	return nil
}

// trouble returns the program's log as an error.
func (p *program) trouble() error {
	log, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	return fmt.Errorf("its log says:\n%s", log)
}
