package files

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func someTime() time.Time { return time.Unix(1_700_000_000, 0) }

func someFiles() []File {
	return []File{
		{Name: "b/c/tool", Mode: Executable, Data: []byte("tool")},
		{Name: "a.txt", Mode: Plain, Data: []byte("text")},
		{Name: "b/z.txt", Mode: Plain},
	}
}

func TestArchivesDependOnNothingButTheirContent(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(io.Writer, []File, time.Time) error{
		"tar": WriteTar, "tar.gz": WriteTarGzip, "zip": WriteZip,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var one, other bytes.Buffer
			if err := write(&one, someFiles(), someTime()); err != nil {
				t.Fatal(err)
			}
			shuffled := someFiles()
			slices.Reverse(shuffled)
			if err := write(&other, shuffled, someTime().In(time.FixedZone("far", 13*3600))); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(one.Bytes(), other.Bytes()) {
				t.Error("the order of the files or the time's zone is in the archive")
			}
		})
	}
}

func TestTarHasParentsFirstAndRootsFiles(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteTar(&b, someFiles(), someTime()); err != nil {
		t.Fatal(err)
	}
	var names []string
	r := tar.NewReader(&b)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		if header.Uid != 0 || header.Gid != 0 || header.Uname != "" || !header.ModTime.Equal(someTime()) {
			t.Errorf("%s: uid %d, gid %d, user %q, time %s", header.Name, header.Uid, header.Gid, header.Uname, header.ModTime)
		}
		if want := int64(Executable); header.Name == "b/c/tool" && header.Mode != want {
			t.Errorf("%s has the mode %o, not %o", header.Name, header.Mode, want)
		}
	}
	if want := []string{"b/", "b/c/", "a.txt", "b/c/tool", "b/z.txt"}; !slices.Equal(names, want) {
		t.Errorf("the archive has %q, want %q", names, want)
	}
}

func TestZipKeepsModes(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteZip(&b, someFiles(), someTime()); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range r.File {
		want := Plain
		if file.Name == "b/c/tool" {
			want = Executable
		}
		if file.Mode() != want {
			t.Errorf("%s has the mode %s, not %s", file.Name, file.Mode(), want)
		}
	}
}

func TestNamesThatLeaveTheArchiveOrComeTwiceAreRefused(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"/etc/passwd"}, {"../up"}, {"a/../b"}, {""}, {"."}, {"a/"}, {"a", "a"}} {
		var list []File
		for _, name := range names {
			list = append(list, File{Name: name, Mode: Plain})
		}
		if err := WriteTar(io.Discard, list, someTime()); err == nil {
			t.Errorf("a tar with %q was written", names)
		}
		if err := WriteZip(io.Discard, list, someTime()); err == nil {
			t.Errorf("a zip with %q was written", names)
		}
	}
}

func TestCreateLeavesNothingBehindWhenWritingFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	failure := errors.New("no more")
	err := Create(filepath.Join(dir, "x"), func(w io.Writer) error {
		_, _ = w.Write([]byte("half"))
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("the error is %v, want one about %v", err, failure)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the folder has %v (%v), want nothing", entries, err)
	}
}

func TestCreateLeavesNothingBehindWhenThePlaceIsTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "x", "y"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Create(filepath.Join(dir, "x"), func(io.Writer) error { return nil }); err == nil {
		t.Error("a file has taken a folder's place")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v (%v), want x alone", entries, err)
	}
}

func TestZipOfATimeBeforeItsCalendarBegins(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := WriteZip(&b, someFiles(), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range r.File {
		if year := file.Modified.UTC().Year(); year != 1980 {
			t.Errorf("%s is of the year %d", file.Name, year)
		}
	}
}
