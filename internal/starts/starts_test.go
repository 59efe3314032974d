package starts

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// takeAll takes what is there: see [Reader.Take] for why it takes two calls.
func takeAll(t *testing.T, folder string) (events []Event, skipped int) {
	t.Helper()
	r := NewReader(folder)
	for range 2 {
		more, bad, err := r.Take()
		if err != nil {
			t.Fatal(err)
		}
		events, skipped = append(events, more...), skipped+bad
	}
	return events, skipped
}

func TestEventsAreTakenOnce(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	want := []Event{{Time: noon, Took: time.Millisecond}, {Time: noon.Add(time.Second), Refused: "held", Took: 2 * time.Millisecond}}
	for _, e := range want {
		if err := Append(folder, e); err != nil {
			t.Fatal(err)
		}
	}
	got, skipped := takeAll(t, folder)
	if diff := cmp.Diff(want, got); diff != "" || skipped != 0 {
		t.Errorf("%s, %d skipped", diff, skipped)
	}
	if again, _ := takeAll(t, folder); len(again) != 0 {
		t.Errorf("taken again: %v", again)
	}
}

// TestNothingIsLostBetweenTakes has many starts at once while the file is
// taken. Those that were at work then have ended by the next time.
func TestNothingIsLostBetweenTakes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	const rounds, writers, each = 20, 8, 5
	total, r := 0, NewReader(folder)
	take := func() {
		events, skipped, err := r.Take()
		if err != nil || skipped != 0 {
			t.Errorf("%d skipped, %v", skipped, err)
		}
		total += len(events)
	}
	for range rounds {
		var group sync.WaitGroup
		for range writers {
			group.Go(func() {
				for range each {
					if err := Append(folder, Event{Time: noon, Took: 1}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		take()
		group.Wait()
	}
	take()
	take()
	if total != rounds*writers*each {
		t.Errorf("%d events, want %d", total, rounds*writers*each)
	}
}

func TestForeignAndTornLinesAreSkipped(t *testing.T) {
	t.Parallel()
	good := `{"time":"2026-03-01T12:00:00Z","tookNanoseconds":5}` + "\n"
	for name, test := range map[string]struct {
		content         string
		events, skipped int
	}{
		"good":          {good + good, 2, 0},
		"torn":          {good + strings.TrimSuffix(good, "\n"), 1, 1},
		"foreign":       {"hello\n" + good + "\x00\xff\n", 1, 2},
		"negative":      {`{"time":"2026-03-01T12:00:00Z","tookNanoseconds":-5}` + "\n", 0, 1},
		"no time":       {`{"tookNanoseconds":5}` + "\n", 0, 1},
		"of a later us": {`{"time":"2026-03-01T12:00:00Z","tookNanoseconds":5,"colour":"red"}` + "\n", 1, 0},
		"long":          {`{"time":"2026-03-01T12:00:00Z","refused":"` + strings.Repeat("x", maxLine) + "\"}\n", 0, 1},
		"empty":         {"", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			if err := os.WriteFile(filepath.Join(folder, fileName), []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if events, skipped := takeAll(t, folder); len(events) != test.events || skipped != test.skipped {
				t.Errorf("%d events, %d skipped", len(events), skipped)
			}
		})
	}
}

func TestFileIsBoundedWhereNobodyReadsIt(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, fileName)
	if err := os.WriteFile(path, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Append(folder, Event{Time: noon}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != maxBytes+1 {
		t.Error(info.Size(), err)
	}
}

func TestNothingThere(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "absent")
	if events, skipped := takeAll(t, folder); len(events) != 0 || skipped != 0 {
		t.Error(events, skipped)
	}
	if err := Append(folder, Event{Time: noon}); err == nil {
		t.Error("a folder was made")
	}
}

func TestWhatIsNoFileIsNotRead(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, takenName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := NewReader(folder).Take(); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"time":"2026-03-01T12:00:00Z","refused":"held","tookNanoseconds":5}` + "\n"))
	f.Add([]byte("{}\n\n{"))
	f.Add([]byte("[1]\r\nnull\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		events, skipped := parse(data)
		if lines := strings.Count(string(data), "\n"); len(events) > lines || len(events)+skipped < lines || len(events)+skipped > lines+1 {
			t.Errorf("%d events and %d skipped of %d lines", len(events), skipped, lines)
		}
		for _, e := range events {
			if e.Took < 0 || e.Time.IsZero() {
				t.Errorf("%+v", e)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	folder := b.TempDir()
	path := filepath.Join(folder, fileName)
	event := Event{Time: time.Now(), Refused: "held", Took: 1234567}
	for i := 0; b.Loop(); i++ {
		if err := Append(folder, event); err != nil {
			b.Fatal(err)
		}
		if i%1000 == 999 {
			if err := os.Remove(path); err != nil {
				b.Fatal(err)
			}
		}
	}
}
