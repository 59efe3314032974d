package baselayer

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"time"

	"directx-nri/tools/release/internal/files"
)

func someTime() time.Time { return time.Unix(1_700_000_000, 0) }

func layer(t *testing.T) *tar.Reader {
	t.Helper()
	var b bytes.Buffer
	list := []files.File{
		{Name: "dxctl.exe", Mode: files.Executable, Data: []byte("MZ")},
		{Name: "doc/LICENSE", Mode: files.Plain, Data: []byte("terms")},
	}
	if err := Write(&b, list, someTime()); err != nil {
		t.Fatal(err)
	}
	return tar.NewReader(&b)
}

// What hcsshim's writer of base layers needs: each folder before what is in it,
// and everything only once, since it creates and never opens.
func TestLayerCanBeCreatedInItsOrder(t *testing.T) {
	t.Parallel()
	there := map[string]bool{".": true}
	r := layer(t)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(header.Name, "/")
		if there[name] {
			t.Errorf("%s comes twice", name)
		}
		if !there[path.Dir(name)] {
			t.Errorf("%s comes before its folder", name)
		}
		there[name] = true
		if header.AccessTime.IsZero() || header.ChangeTime.IsZero() || header.PAXRecords[creationRecord] != "1700000000" {
			t.Errorf("%s has unset times", name)
		}
		want := "32"
		if header.Typeflag == tar.TypeDir {
			want = "16"
		}
		if got := header.PAXRecords[attributesRecord]; got != want {
			t.Errorf("%s has the attributes %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{
		"Files/dxctl.exe", "Files/doc/LICENSE",
		"Files/Windows/System32/config/DEFAULT", "Files/Windows/System32/config/SAM", "Files/Windows/System32/config/SECURITY",
		"Files/Windows/System32/config/SOFTWARE", "Files/Windows/System32/config/SYSTEM",
	} {
		if !there[name] {
			t.Errorf("%s is not in the layer", name)
		}
	}
	if there["UtilityVM"] {
		t.Error("the layer says that it can be a virtual machine")
	}
}

func TestHivesAreNotEmptyFiles(t *testing.T) {
	t.Parallel()
	r := layer(t)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if path.Dir(header.Name) != "Files/Windows/System32/config" || header.Typeflag == tar.TypeDir {
			continue
		}
		if data, err := io.ReadAll(r); err != nil || !bytes.HasPrefix(data, []byte("regf")) {
			t.Errorf("%s is no hive (%v)", header.Name, err)
		}
	}
}

func TestNobodysFileTakesTheRegistrysPlace(t *testing.T) {
	t.Parallel()
	list := []files.File{{Name: "Windows/System32/config/SAM", Mode: files.Plain}}
	if err := Write(io.Discard, list, someTime()); err == nil {
		t.Error("a layer with a second SAM was written")
	}
}
