//go:build race

package nri

// raceDetector reports whether the race detector is on.
const raceDetector = true
