package service

import (
	"strings"
	"testing"
)

func TestCheckNative(t *testing.T) {
	t.Parallel()
	for commandLine, program := range map[string]string{
		`"C:\Program Files\containerd\containerd.exe" --run-service`: "",
		`C:\Program Files\containerd\containerd.exe --run-service`:   "",
		`C:\k\CONTAINERD.EXE`:                  "",
		`C:\k\nssm.exe`:                        `C:\k\nssm.exe`,
		`"C:\Program Files\nssm\nssm.exe"`:     `C:\Program Files\nssm\nssm.exe`,
		`C:\k\nssm.exe C:\k\containerd.exe`:    `C:\k\nssm.exe`,
		`powershell -File C:\k\containerd.exe`: `powershell`,
		``:                                     "",
	} {
		err := checkNative("containerd", commandLine)
		if native := program == "" && commandLine != ""; native != (err == nil) {
			t.Errorf("%s: %v", commandLine, err)
		}
		if err != nil && !strings.Contains(err.Error(), program) {
			t.Errorf("%s: %v", commandLine, err)
		}
	}
}
