package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// showsColor tells whether the console understands ECMA-48 sequences, and has it
// do so: a console of Windows prints them as they are until a program asks. The
// shells set the mode anew when a program ends.
// https://learn.microsoft.com/windows/console/setconsolemode
func showsColor(file *os.File) bool {
	handle := windows.Handle(file.Fd())
	var mode uint32
	if err := windows.GetConsoleMode(handle, &mode); err != nil {
		return false
	}
	return windows.SetConsoleMode(handle, mode|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
