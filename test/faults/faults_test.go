//go:build e2e && linux

// Package faults runs random sequences of pods and faults on a node of real parts, and
// checks after each step, from the running containers themselves, that each has exactly
// the GPUs that it was promised.
//
//	DIRECTX_NRI_FAULTS_TIME=2h make faults         new sequences for two hours
//	DIRECTX_NRI_FAULTS_REPLAY=SEED:STEPS make faults  the first steps of one
//
// A sequence is determined by its seed; the moments at which the programs of the node
// act are not, so a replay may have to be repeated. In half of the sequences pods are
// static, in the others they are created with an API server. Every second one has a kubelet
// that allocates when it creates a container, as on Windows. Runs can go on side by side.
package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/test/bed"
)

func TestMain(m *testing.M) {
	os.Exit(bed.NodeSuite().Main(m))
}

const (
	defaultTime = 3 * time.Minute
	// roundSteps is the number of steps between the start of a node and the check that
	// everything works again.
	roundSteps = 60
	// windowsBit is set in the seeds of sequences with a kubelet as on Windows.
	windowsBit = 32
)

// TestFaults plays sequences until its time is over or one has failed.
func TestFaults(t *testing.T) {
	if replay := os.Getenv("DIRECTX_NRI_FAULTS_REPLAY"); replay != "" {
		var seed uint64
		var steps int
		if _, err := fmt.Sscanf(replay, "%d:%d", &seed, &steps); err != nil {
			t.Fatal(err)
		}
		play(t, seed, steps)
		return
	}
	limit := defaultTime
	if value := os.Getenv("DIRECTX_NRI_FAULTS_TIME"); value != "" {
		var err error
		if limit, err = time.ParseDuration(value); err != nil {
			t.Fatal(err)
		}
	}
	var total statistics
	for start, windows := time.Now(), uint64(0); time.Since(start) < limit; windows ^= 1 {
		seed := rand.Uint64N(1e9)&^windowsBit | windows*windowsBit
		r := play(t, seed, roundSteps)
		total.add(r.statistics)
		if t.Failed() {
			t.Errorf("to play it again: DIRECTX_NRI_FAULTS_REPLAY=%d:%d make faults", seed, r.steps)
			break
		}
	}
	fmt.Printf("faults: %v\n", total)
	// A fourth of what is usual at most, as the numbers vary.
	if n := total.steps; n >= roundSteps && (total.judged == 0 || total.healthy < n/roundSteps || total.standalone < n/roundSteps || total.withGPU < n/10) {
		t.Error("too little was checked")
	}
}

// play plays the first steps of a sequence on a new node, and then checks that
// everything works again and nothing is left.
func play(t *testing.T, seed uint64, steps int) (r *round) {
	r = &round{}
	t.Run(fmt.Sprintf("%d:%d", seed, steps), func(t *testing.T) {
		r.t, r.random = t, rand.New(rand.NewPCG(seed, 0))
		windows := seed&windowsBit != 0
		r.start(seed%2 == 1 && !windows, seed/8%2 == 1, windows)
		for r.steps < steps && !t.Failed() {
			r.steps++
			r.step()
			r.check()
		}
		if !t.Failed() {
			r.settle()
		}
		t.Log(r.statistics)
	})
	return r
}

// statistics are what was done in some rounds.
type statistics struct {
	steps, pods, withGPU, standalone, refused int
	// healthy are the steps after which nothing excused a refusal.
	healthy int
	// judged are containerd's calls for containers without a GPU, except while containerd or the kubelet did not work.
	judged int
}

func (s *statistics) add(more statistics) {
	s.steps += more.steps
	s.pods += more.pods
	s.withGPU += more.withGPU
	s.standalone += more.standalone
	s.refused += more.refused
	s.healthy += more.healthy
	s.judged += more.judged
}

func (s statistics) String() string {
	return fmt.Sprintf("%d steps, %d of them without an excuse, %d pods, %d starts of containers with a GPU, %d standalone containers, %d pods refused by the kubelet, %d judged calls of containerd",
		s.steps, s.healthy, s.pods, s.withGPU, s.standalone, s.refused, s.judged)
}
