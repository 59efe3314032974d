package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"directx-nri/internal/config"
	"directx-nri/internal/logging"
)

// Settings are a daemon's flags for the configuration, and the file to read.
type Settings struct {
	flags   *pflag.FlagSet
	program config.Program
	file    string
	environ []string
}

// AddFlags adds --config and the flags of program's settings to flags. Nothing is
// read yet: the defaults that --help shows are those without a file.
func (s *Settings) AddFlags(flags *pflag.FlagSet, program config.Program) {
	s.flags, s.program, s.environ = flags, program, os.Environ()
	flags.SortFlags = false
	flags.StringVar(&s.file, "config", config.Path(), "configuration file, which need not be there")
	for _, setting := range config.Settings() {
		if setting.Programs&program == 0 {
			continue
		}
		flag := flags.VarPF(&settingFlag{text: setting.Default(), kind: setting.Type}, setting.Flag, "", setting.Usage)
		if setting.Type == config.SwitchValue {
			flag.NoOptDefVal = "true"
		}
	}
}

// settingFlag keeps a flag's text as it was given. What it means is checked with
// all other settings.
type settingFlag struct {
	text string
	kind config.Type
}

// String returns the text.
func (f *settingFlag) String() string { return f.text }

// Set sets the text.
func (f *settingFlag) Set(text string) error {
	f.text = text
	return nil
}

// Type returns what --help shows for a value.
func (f *settingFlag) Type() string {
	switch f.kind {
	case config.NumberValue:
		return "int"
	case config.SwitchValue:
		return "bool"
	}
	return "string"
}

// File returns the configuration file's path. A relative one is taken from the
// working folder.
func (s *Settings) File() string {
	if abs, err := filepath.Abs(s.file); err == nil {
		return abs
	}
	return s.file
}

// Read returns the configuration: the flags that were given, then the variables
// of the environment, then the file. A wrong flag is an error as of [Usage].
func (s *Settings) Read() (config.Config, error) {
	overrides, err := s.overrides()
	if err != nil {
		return config.Config{}, err
	}
	if s.flags.Changed("config") {
		if _, err := os.Lstat(s.File()); errors.Is(err, fs.ErrNotExist) {
			return config.Config{}, fmt.Errorf("read configuration: %w; create the file, or leave --config out to do without", err)
		}
	}
	c, err := config.ReadVolume(s.File(), overrides...)
	if wrong := (*config.OverrideError)(nil); errors.As(err, &wrong) {
		return config.Config{}, usageError{wrong}
	}
	return c, err
}

func (s *Settings) overrides() ([]config.Override, error) {
	overrides := config.Environment(s.environ)
	for _, setting := range config.Settings() {
		if setting.Programs&s.program == 0 || !s.flags.Changed(setting.Flag) {
			continue
		}
		text := s.flags.Lookup(setting.Flag).Value.String()
		if setting.Type == config.PathValue && text != "" {
			// A person at a prompt means a file in the folder they are in.
			abs, err := filepath.Abs(text)
			if err != nil {
				return nil, Usage("--%s: %w", setting.Flag, err)
			}
			text = abs
		}
		overrides = append(overrides, config.Override{Origin: "--" + setting.Flag, Key: setting.Key, Value: text})
	}
	return overrides, nil
}

// Run returns what a cobra command does that runs with its configuration and the
// log that this asks for, on its standard error.
func (s *Settings) Run(run func(ctx context.Context, c config.Config, log *logrus.Logger) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, _ []string) error {
		c, err := s.Read()
		if err != nil {
			return err
		}
		log, err := newLog(c.Log, command.ErrOrStderr())
		if err != nil {
			return err
		}
		return run(command.Context(), c, log)
	}
}

func newLog(c config.Log, w io.Writer) (*logrus.Logger, error) {
	log := logrus.New()
	log.SetOutput(w)
	return log, logging.Apply(log, c.Level, c.Format)
}
