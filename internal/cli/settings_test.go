package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"directx-nri/internal/config"
)

// program runs a program with settings and returns its configuration, its log
// after a message of each level, and its exit status.
func program(t *testing.T, which config.Program, environ []string, args ...string) (c config.Config, log string, status int) {
	t.Helper()
	var settings Settings
	command := &cobra.Command{Use: "prog"}
	settings.AddFlags(command.Flags(), which)
	settings.environ = environ
	command.RunE = settings.Run(func(_ context.Context, read config.Config, log *logrus.Logger) error {
		c = read
		log.Warn("a warning")
		log.Debug("a detail")
		return nil
	})
	var stderr bytes.Buffer
	status = run(t.Context(), command, args, &stderr, &stderr)
	return c, stderr.String(), status
}

func TestSettingsCountInTheirOrder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\nlog: {level: error}\nreplicas: 2\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		environ, args []string
		level         string
		replicas      int
	}{
		"the file":                  {nil, []string{"--config", path}, "error", 2},
		"a variable before it":      {[]string{"DIRECTX_NRI_LOG_LEVEL=debug"}, []string{"--config", path}, "debug", 2},
		"an empty variable is none": {[]string{"DIRECTX_NRI_LOG_LEVEL="}, []string{"--config", path}, "error", 2},
		"a flag before both":        {[]string{"DIRECTX_NRI_LOG_LEVEL=debug", "DIRECTX_NRI_REPLICAS=3"}, []string{"--config", path, "--log-level=warn", "--replicas", "4"}, "warn", 4},
		"a flag with the default":   {nil, []string{"--config", path, "--log-level=info"}, "info", 2},
		"a Service's variable":      {[]string{"DIRECTX_NRI_PORT=tcp://10.0.0.1:80", "DIRECTX_NRI_SERVICE_HOST=10.0.0.1"}, []string{"--config", path}, "error", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, log, status := program(t, config.Advertiser, test.environ, test.args...)
			if status != 0 || c.Log.Level != test.level || c.Resources[0].Replicas != test.replicas {
				t.Errorf("status %d, level %s, replicas %d: %s", status, c.Log.Level, c.Resources[0].Replicas, log)
			}
		})
	}
}

func TestSettingsNeedNoFile(t *testing.T) {
	t.Parallel()
	c, log, status := program(t, config.Advertiser, []string{"DIRECTX_NRI_LOG_FORMAT=json"}, "--fail-on-init-error", "--inventory=gpus.yaml")
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 || !c.FailOnInitError || c.Inventory != filepath.Join(folder, "gpus.yaml") {
		t.Errorf("status %d: %+v", status, c)
	}
	if !strings.Contains(log, `"msg":"a warning"`) || strings.Contains(log, "detail") {
		t.Errorf("log %q", log)
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for name, test := range map[string]struct {
		environ, args []string
		status        int
		want          string
	}{
		"log level":       {nil, []string{"--log-level", "loud"}, 2, "prog: --log-level: \"loud\" is none of error, warn, info, debug\nTry 'prog --help'.\n"},
		"log format":      {nil, []string{"--log-format=xml"}, 2, "prog: --log-format: \"xml\" is none of text, json\n"},
		"no replica":      {nil, []string{"--replicas=0"}, 2, "prog: --replicas: 0 is not possible; choose 1 to 1024\n"},
		"many replicas":   {nil, []string{"--replicas=1025"}, 2, "1025 is not possible"},
		"wrapped":         {nil, []string{"--replicas=-1"}, 2, "-1 is not possible"},
		"no number":       {nil, []string{"--replicas=many"}, 2, `--replicas: "many" is not a whole number`},
		"not set":         {nil, []string{"--state-dir="}, 2, "--state-dir: is empty"},
		"neither nor":     {nil, []string{"--fail-on-init-error=yes"}, 2, `--fail-on-init-error: "yes" is neither true nor false`},
		"variable":        {[]string{"DIRECTX_NRI_REPLICAS=0"}, nil, 2, "prog: DIRECTX_NRI_REPLICAS: 0 is not possible; choose 1 to 1024\n"},
		"variable's path": {[]string{"DIRECTX_NRI_STATE_DIR=here"}, nil, 2, `DIRECTX_NRI_STATE_DIR: "here" is not an absolute path`},
		"no file":         {nil, []string{"--config", missing}, 1, "none.yaml"},
		"another's flag":  {nil, []string{"--nri-index=50"}, 2, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, log, status := program(t, config.Advertiser, test.environ, test.args...)
			if status != test.status || !strings.Contains(log, test.want) {
				t.Errorf("status %d, %q; want %q", status, log, test.want)
			}
		})
	}
}

// TestHelpHasEachSetting also holds that no two settings of a program have one
// flag, which pflag panics about, and that --help tells the defaults.
func TestHelpHasEachSetting(t *testing.T) {
	t.Parallel()
	for _, which := range []config.Program{config.Advertiser, config.Plugin} {
		_, help, status := program(t, which, nil, "--help")
		if status != 0 {
			t.Fatalf("status %d", status)
		}
		for _, s := range config.Settings() {
			if has := strings.Contains(help, "--"+s.Flag+" "); s.Flag != "" && s.Programs&which != 0 && !has {
				t.Errorf("no --%s in %s", s.Flag, help)
			}
		}
		if !strings.Contains(help, `(default "info")`) || !strings.Contains(help, "--config string") {
			t.Error(help)
		}
	}
}
