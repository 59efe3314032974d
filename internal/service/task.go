package service

import (
	"encoding/binary"
	"encoding/xml"
	"fmt"
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

// taskXML is the definition of a task.
// https://learn.microsoft.com/windows/win32/taskschd/task-scheduler-schema
type taskXML struct {
	XMLName     xml.Name `xml:"http://schemas.microsoft.com/windows/2004/02/mit/task Task"`
	Version     string   `xml:"version,attr"`
	Description string   `xml:"RegistrationInfo>Description"`
	Principal   struct {
		ID       string `xml:"id,attr"`
		UserID   string `xml:"UserId"`
		RunLevel string
	} `xml:"Principals>Principal"`
	Settings struct {
		MultipleInstancesPolicy    string
		DisallowStartIfOnBatteries bool
		StopIfGoingOnBatteries     bool
		AllowStartOnDemand         bool
		Enabled                    bool
		ExecutionTimeLimit         string
	}
	Actions struct {
		Context string `xml:",attr"`
		Exec    struct{ Command, Arguments string }
	}
}

// definition returns the task's definition, in UTF-16 as schtasks.exe reads it.
func (t Task) definition(arguments string) ([]byte, error) {
	d := taskXML{Version: "1.2", Description: "Restarts containerd once for directx-nri."}
	d.Principal.ID, d.Principal.UserID, d.Principal.RunLevel = "System", "S-1-5-18", "HighestAvailable"
	d.Settings.MultipleInstancesPolicy = "IgnoreNew"
	d.Settings.AllowStartOnDemand, d.Settings.Enabled = true, true
	d.Settings.ExecutionTimeLimit = fmt.Sprintf("PT%dS", int(t.Limit.Seconds()))
	d.Actions.Context = d.Principal.ID
	d.Actions.Exec.Command, d.Actions.Exec.Arguments = t.Program, arguments
	text, err := xml.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("define the scheduled task %q: %w", t.Name, err)
	}
	const byteOrderMark = "\ufeff"
	utf16Text := utf16.Encode([]rune(byteOrderMark + `<?xml version="1.0" encoding="UTF-16"?>` + "\r\n" + string(text)))
	return binary.Append(nil, binary.LittleEndian, utf16Text)
}
