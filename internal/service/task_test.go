package service

import (
	"strings"
	"testing"
	"time"
	"unicode/utf16"
)

func TestTaskDefinition(t *testing.T) {
	t.Parallel()
	task := Task{Name: "x", Program: `C:\ProgramData\directx-nri\task.exe`, Limit: 3 * time.Minute}
	data, err := task.definition(`--state-dir "C:\a & b"`)
	if err != nil {
		t.Fatal(err)
	}
	var units []uint16
	for i := 0; i < len(data); i += 2 {
		units = append(units, uint16(data[i])|uint16(data[i+1])<<8)
	}
	text := string(utf16.Decode(units))
	for _, want := range []string{
		"\ufeff<?xml version=\"1.0\" encoding=\"UTF-16\"?>\n", `<Task xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task" version="1.2">`,
		"<UserId>S-1-5-18</UserId>", "<ExecutionTimeLimit>PT180S</ExecutionTimeLimit>", `<Actions Context="System">`,
		`<Command>C:\ProgramData\directx-nri\task.exe</Command>`, `<Arguments>--state-dir &#34;C:\a &amp; b&#34;</Arguments>`,
		"<StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
