package frontend

import "os"

// passedOn are signals that would end this process before the program.
func passedOn() []os.Signal { return []os.Signal{os.Interrupt} }

// passOn does nothing: Windows tells all that is run in a console.
func passOn(*os.Process, os.Signal, bool) {}

func exitStatus(state *os.ProcessState) int { return state.ExitCode() }
