// Package shim is the runtime shim: what containerd runs in place of the real
// one, to give containers their GPUs where containerd calls no NRI plugin.
//
// containerd runs it with "start" as its last argument, in the container's
// bundle, after config.json was written there and before anybody has read it.
// [Run] decides as the NRI plugin would, edits config.json, and hands over to
// the real shim with the same arguments, standard streams and environment.
// Everything else is handed over at once. What the real shim starts, it starts
// itself: a container that runs does not depend on us.
//
// It starts with every container of a node, twice, and so links as little as it
// can: see the test of what it imports.
package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/discovery/live"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/config"
	"directx-nri/internal/hostfiles"
	"directx-nri/internal/logging"
	"directx-nri/internal/paths"
	"directx-nri/nri/decision"
	"directx-nri/ocispec"
)

// exitFailure is the exit status of a start that was refused.
const exitFailure = 1

// specName is the file of a bundle that has the OCI runtime spec.
const specName = "config.json"

// Call is one call of the shim.
type Call struct {
	// Self is the path of our own executable.
	Self string
	// Args are the arguments, without the program's name.
	Args []string
	// Env is the environment as NAME=value.
	Env []string
	// Bundle is the working folder.
	Bundle string
	// ConfigPath is our configuration file.
	ConfigPath string
	// Stderr takes our one line when a start is refused. containerd shows it
	// where people look, and takes whatever else is printed, on success, for the
	// address of the container's shim.
	Stderr io.Writer
}

// Run does what the call asks for and returns the exit status. When the real
// shim could be started, the status is that one's, and on Linux Run does not
// return.
func Run(call Call) int {
	status, err := newShim(call).run()
	if err != nil {
		// containerd puts its own words behind ours, so the line has no end.
		fmt.Fprint(call.Stderr, oneLine(err.Error()))
		return exitFailure
	}
	return status
}

type shim struct {
	call Call
	// source lists the node's GPUs.
	source func(config.Config) discovery.Source
	// parse reads the content of config.json.
	parse func([]byte) (ocispec.Spec, error)
	// config is read once, when it is needed.
	config config.Config
	// configBad is why the file's last good copy is in force, and configErr why
	// nothing is.
	configBad, configErr error
	read                 bool
	// group says how the real shim's processes are to be held together.
	group grouping

	// container is what is known of what starts.
	container decision.Container
}

func newShim(call Call) *shim {
	s := &shim{call: call, parse: ocispec.ParseSpec}
	s.container.ID = s.id()
	s.source = s.gpus
	return s
}

func (s *shim) run() (int, error) {
	if s.starts() {
		if err := s.prepare(); err != nil {
			decision.LogRefusal(s.log(), s.container, err)
			return 0, err
		}
	}
	path, err := s.realShim()
	if err != nil {
		return 0, err
	}
	return s.handOver(path)
}

// starts tells whether a container is started.
func (s *shim) starts() bool { return action(s.call.Args) == "start" }

// action returns what a shim is called for: its first argument that is no flag
// and no flag's value. Of containerd's flags only these two have none.
func action(args []string) string {
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "-")
		if !isFlag {
			return args[i]
		}
		name = strings.TrimPrefix(name, "-")
		if name != "debug" && name != "v" && !strings.Contains(name, "=") {
			i++
		}
	}
	return ""
}

// errOurs marks a failure that is nobody's fault but this program's.
var errOurs = errors.New("this is an error in directx-nri: please report it")

// prepare edits the bundle's config.json, if the container asks for a GPU.
func (s *shim) prepare() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = s.mistake(r)
		}
	}()
	path := filepath.Join(s.call.Bundle, specName)
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The real shim has its own words for that.
		return nil
	case err != nil:
		return s.refuse(err)
	}
	if saysHostProcess(data) {
		s.group = groupLoosely
	}
	if cannotAsk(data) {
		return nil
	}
	spec, err := s.parse(data)
	if err != nil {
		return s.refuse(fmt.Errorf("%s: %w; it cannot be told whether the container asks for a GPU", specName, err))
	}
	facts, err := spec.Facts()
	if err != nil {
		return s.refuse(fmt.Errorf("%s: %w; it cannot be told whether the container asks for a GPU", specName, err))
	}
	container, ok := Describe(facts, s.id())
	if !ok || !decision.Asks(container) {
		return nil
	}
	s.container = container
	return s.adjust(path, spec, container)
}

// adjust gives container what it asks for.
func (s *shim) adjust(path string, spec ocispec.Spec, container decision.Container) error {
	log := s.log()
	if s.configuration(); s.configErr != nil {
		return container.Refuse(decision.Because(decision.ReasonConfig, s.configErr))
	}
	if s.configBad != nil {
		log.WithError(s.configBad).Error("the configuration file cannot be used, and its last good copy is in force; correct it")
	}
	store := allocation.OpenStore(paths.Allocations(s.config.StateDir))
	assignment := capabilities.Resolve(s.config.Assignment, string(container.OS), capabilities.AskQuickly)
	decider := decision.Decider{
		Source: s.source(s.config), Store: store, Files: hostfiles.Root(root), Log: log,
		Policy: decision.PolicyOf(s.config, !assignment.Individual),
	}
	edits, ok, err := decider.Decide(context.Background(), container)
	if err != nil || !ok {
		return err
	}
	edited, changed, err := spec.Apply(edits)
	if err != nil {
		return container.Refuse(fmt.Errorf("%s: %w", specName, err))
	}
	if !changed {
		return nil
	}
	if err := replace(path, edited); err != nil {
		return container.Refuse(err)
	}
	s.deliver(log, store, container)
	return nil
}

// mistake returns what the recovered panic r is as the error that keeps the
// container from starting.
func (s *shim) mistake(r any) error {
	s.log().WithField("stack", string(debug.Stack())).Error(r)
	return s.container.Refuse(fmt.Errorf("%w: %v", errOurs, r))
}

// deliver tells the NRI plugin, where there is one, that the container has got
// what it was promised although the runtime's own record of it says otherwise.
func (s *shim) deliver(log logrus.FieldLogger, store *allocation.Store, container decision.Container) {
	if container.OS != ocispec.Linux || !decision.Unadjusted(container.OS, container.Env, container.Annotations) {
		return
	}
	log.WithFields(logrus.Fields{"container": container.Name, "id": container.ID}).
		Warn("the NRI plugin did not adjust this container, so it was done now")
	for _, token := range decision.Tokens(container) {
		if err := store.Deliver(token, container.ID); err != nil {
			log.WithError(err).Warn("the NRI plugin may stop this container, because it cannot be told that it has its GPU")
		}
	}
}

// gpus is the source that c names: its inventory, or the node itself.
func (s *shim) gpus(c config.Config) discovery.Source {
	// What is wrong comes back as the error, too.
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	source, err := live.Open(c.Inventory, quiet)
	if err != nil {
		return unknown{fmt.Errorf("%w: set inventory in %s", err, s.call.ConfigPath)}
	}
	return source
}

// unknown is the source of a node whose GPUs nobody has described.
type unknown struct{ why error }

func (u unknown) Devices(context.Context) ([]discovery.Device, error) { return nil, u.why }

func (u unknown) Find(context.Context, []string) ([]discovery.Device, error) { return nil, u.why }

func (u unknown) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// refuse returns err as the error that keeps the container from starting whose
// config.json could not be read.
func (s *shim) refuse(err error) error {
	return s.container.Refuse(err)
}

// id returns the container's ID: the bundle's name when no argument says it.
func (s *shim) id() string {
	for i, arg := range s.call.Args {
		if (arg == "-id" || arg == "--id") && i+1 < len(s.call.Args) {
			return s.call.Args[i+1]
		}
	}
	return filepath.Base(s.call.Bundle)
}

func (s *shim) configuration() config.Config {
	if !s.read {
		overrides := config.Environment(s.call.Env)
		s.config, s.configBad, s.configErr = config.ReadOrLastGood(s.call.ConfigPath, overrides...)
		s.read = true
		if s.configErr != nil {
			// Without a request no container depends on the file.
			s.config = config.Fallback(overrides...)
		}
	}
	return s.config
}

func (s *shim) log() *logrus.Logger {
	c := s.configuration()
	log := logrus.New()
	if err := logging.Apply(log, c.Log.Level, c.Log.Format); err != nil {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	}
	log.SetOutput(&logFile{path: c.Shim.Log})
	return log
}

func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}
