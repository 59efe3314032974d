//go:build !race

package nri

const raceDetector = false
