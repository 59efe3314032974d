package service

import (
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestCheckNative(t *testing.T) {
	t.Parallel()
	for commandLine, want := range map[string]string{
		`"C:\Program Files\containerd\containerd.exe" --run-service`: "",
		`C:\Program Files\containerd\containerd.exe --run-service`:   "",
		`C:\k\CONTAINERD.EXE`:                  "",
		`C:\k\nssm.exe`:                        `runs C:\k\nssm.exe, and`,
		`"C:\Program Files\nssm\nssm.exe"`:     `runs C:\Program Files\nssm\nssm.exe, and`,
		`C:\k\nssm.exe C:\k\containerd.exe`:    `runs C:\k\nssm.exe, and`,
		`powershell -File C:\k\containerd.exe`: `runs powershell -File C:\k\containerd.exe, and`,
		``:                                     "is not a native service",
	} {
		testutil.CheckError(t, commandLine, checkNative("containerd", commandLine), want)
	}
}
