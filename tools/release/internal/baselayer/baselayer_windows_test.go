package baselayer

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"testing"
	"unsafe"

	"github.com/Microsoft/go-winio"
	"github.com/Microsoft/go-winio/backuptar"
	"golang.org/x/sys/windows"
)

// What containerd does with each header of a layer, by the library that it does
// it with, up to the stream that Windows' BackupWrite is given.
func TestHcsshimReadsTheLayer(t *testing.T) {
	t.Parallel()
	r := layer(t)
	header, err := r.Next()
	seen := 0
	for err == nil {
		seen++
		name, kind, size := header.Name, header.Typeflag, header.Size
		_, got, info, infoErr := backuptar.FileInfoFromHeader(header)
		if infoErr != nil {
			t.Fatalf("%s: %v", name, infoErr)
		}
		if got != size {
			t.Errorf("%s has %d bytes, want %d", name, got, size)
		}
		if isDir := info.FileAttributes&windows.FILE_ATTRIBUTE_DIRECTORY != 0; isDir != (kind == tar.TypeDir) {
			t.Errorf("%s: a folder by its attributes %v, by its type %v", name, isDir, !isDir)
		}
		for what, time := range map[string]windows.Filetime{
			"creation": info.CreationTime, "write": info.LastWriteTime, "access": info.LastAccessTime, "change": info.ChangeTime,
		} {
			if time.Nanoseconds() != someTime().UnixNano() {
				t.Errorf("%s has the %s time %d, want %d", name, what, time.Nanoseconds(), someTime().UnixNano())
			}
		}
		var stream bytes.Buffer
		header, err = backuptar.WriteBackupStreamFromTarFile(&stream, r, header)
		checkStream(t, name, kind, size, &stream)
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if seen != 12 {
		t.Errorf("the layer has %d entries, want 12", seen)
	}
}

func checkStream(t *testing.T, name string, kind byte, size int64, stream io.Reader) {
	t.Helper()
	r := winio.NewBackupStreamReader(stream)
	parts := make(map[uint32]int64)
	for {
		part, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		parts[part.Id] = part.Size
		if part.Id != winio.BackupSecurity {
			continue
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		descriptor := (*windows.SECURITY_DESCRIPTOR)(unsafe.Pointer(&raw[0]))
		if !descriptor.IsValid() || descriptor.Length() != uint32(len(raw)) {
			t.Fatalf("%s: Windows does not take its security descriptor", name)
		}
		want := "O:BAG:SYD:P(A;;FA;;;BA)(A;;FA;;;SY)(A;;0x1200a9;;;BU)"
		if kind == tar.TypeDir {
			want = "O:BAG:SYD:P(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1200a9;;;BU)"
		}
		if got := descriptor.String(); got != want {
			t.Errorf("%s has the security descriptor %s, want %s", name, got, want)
		}
	}
	if _, ok := parts[winio.BackupSecurity]; !ok {
		t.Errorf("%s has no security descriptor", name)
	}
	if got := parts[winio.BackupData]; got != size {
		t.Errorf("%s has %d bytes in the stream, want %d", name, got, size)
	}
}
