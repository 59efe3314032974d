package service

import (
	"encoding/binary"
	"fmt"
	"html"
	"time"
	"unicode/utf16"
)

// Task is a scheduled task of Windows that runs once, on demand, as SYSTEM. Its process
// is in no job and has no console of its creator.
type Task struct {
	Name string
	// Program is its absolute path.
	Program string
	Args    []string
	// Limit is how long it may run.
	Limit time.Duration
}

// taskXML is the definition of a task, with its limit in seconds, program and arguments.
// https://learn.microsoft.com/windows/win32/taskschd/task-scheduler-schema
const taskXML = `<?xml version="1.0" encoding="UTF-16"?>
<Task xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task" version="1.2">
  <RegistrationInfo>
    <Description>Restarts containerd once for directx-nri.</Description>
  </RegistrationInfo>
  <Principals>
    <Principal id="System">
      <UserId>S-1-5-18</UserId>
      <RunLevel>HighestAvailable</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <AllowStartOnDemand>true</AllowStartOnDemand>
    <Enabled>true</Enabled>
    <ExecutionTimeLimit>PT%.0fS</ExecutionTimeLimit>
  </Settings>
  <Actions Context="System">
    <Exec>
      <Command>%s</Command>
      <Arguments>%s</Arguments>
    </Exec>
  </Actions>
</Task>`

// definition returns the task's definition, in UTF-16 as schtasks.exe reads it.
func (t Task) definition(arguments string) ([]byte, error) {
	const byteOrderMark = "\ufeff"
	text := fmt.Sprintf(byteOrderMark+taskXML, t.Limit.Seconds(), html.EscapeString(t.Program), html.EscapeString(arguments))
	return binary.Append(nil, binary.LittleEndian, utf16.Encode([]rune(text)))
}
