package main

import "time"

// noopObserver is the observer without metrics.
type noopObserver struct{}

func (noopObserver) HookDone(string, time.Duration) {}
func (noopObserver) Refused(string, string)         {}
