//go:build race

package nri

// raceDetector tells whether these tests look for data races.
const raceDetector = true
