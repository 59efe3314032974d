package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	const id, token = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"
	for text, want := range map[string]string{
		"nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)":   "nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)",
		"allocation=" + id + " " + token:                 "allocation=" + id + " " + Redacted,
		`{"msg":"a\n` + token + `"}`:                     `{"msg":"a\n` + Redacted + `"}`,
		`{"msg":"a\u003e` + token + `"}`:                 `{"msg":"a\u003e` + Redacted + `"}`,
		"container=" + id + token:                        "container=" + id + token,
		"DIRECTX_ALLOCATION_DISPLAY=" + token:            "DIRECTX_ALLOCATION_DISPLAY=" + Redacted,
		`password: hunter2, next`:                        `password: ` + Redacted + `, next`,
		`{"passwordHash":"a b\"c","next":1}`:             `{"passwordHash":"` + Redacted + `","next":1}`,
		`{"msg":"secret=\"a b\" next"}`:                  `{"msg":"secret=\"` + Redacted + `\" next"}`,
		`API_KEY='a b' next`:                             `API_KEY='` + Redacted + `' next`,
		"https://me:hunter2@example.com/a?sig=x y":       "https://" + Redacted + "@example.com/a?" + Redacted + " y",
		"Authorization: Bearer abcdefgh":                 "Authorization: " + Redacted + " " + Redacted,
		"x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.abc y":      "x " + Redacted + " y",
		"-----BEGIN KEY-----\nabc\n-----END KEY-----\nz": Redacted + "\nz",
		"-----BEGIN KEY-----\nabc":                       Redacted,
	} {
		if got := string(Redact([]byte(text), map[string]bool{id: true})); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", text, got, want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("before ", " after")
	f.Add(`{"a":"`, `"}`)
	f.Fuzz(func(t *testing.T, before, after string) {
		const token = "ffeeddccbbaa99887766554433221100"
		// What makes the token a part of something longer is no token.
		if got := string(Redact([]byte(before+" "+token+" "+after), nil)); strings.Contains(got, token) && !strings.Contains(before+after, token) {
			t.Errorf("%q", got)
		}
	})
}

func TestHush(t *testing.T) {
	t.Parallel()
	err := Hush(errors.Join(fs.ErrPermission, errors.New("line 3: cannot unmarshal !!str `hunter2` into x; \"hunter3\" 'hunter4'; field hunter5 not found in type y; key \"hunter6\" already set")))
	if strings.Contains(err.Error(), "hunter") || !strings.Contains(err.Error(), "line 3") || !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	facts := Facts{Records: Records{Damaged: []FileError{{"x", errors.New(`json: unknown field "hunter"`)}}}}
	if text := facts.Hush().Records.Damaged[0].Err.Error(); strings.Contains(text, "hunter") || !strings.Contains(facts.Records.Damaged[0].Err.Error(), "hunter") {
		t.Errorf("a record's error becomes %s", text)
	}
	facts.Failed = FailedConfigure{Why: `json: unknown field "hunter"`, Err: errors.New(`json: unknown field "hunter"`)}
	if quiet := facts.Hush().Failed; strings.Contains(quiet.Why+quiet.Err.Error(), "hunter") {
		t.Errorf("a restart that failed becomes %+v", quiet)
	}
	if Hush(nil) != nil {
		t.Error("no error became one")
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "log")
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{100: "one\ntwo\nthree\n", 14: "one\ntwo\nthree\n", 8: "three\n", 7: "three\n", 2: ""} {
		if got, err := Tail(file, limit); err != nil || string(got) != want {
			t.Errorf("%d: %q, %v, want %q", limit, got, err, want)
		}
	}
	if _, err := Tail(folder, 10); err == nil {
		t.Error("a folder has an end")
	}
	if _, err := Tail(filepath.Join(folder, "none"), 10); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestWriteBundle(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.zip")
	files := []File{{"a.json", []byte("{}")}}
	if err := WriteBundle(file, files, time.Now(), false); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteBundle(file, append(files, File{"b.json", nil}), time.Now(), false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	if now, err := os.ReadFile(file); err != nil || string(now) != string(before) {
		t.Errorf("the file was changed: %v", err)
	}
	if err := WriteBundle(file, nil, time.Now(), true); err != nil {
		t.Errorf("replaced: %v", err)
	}
}
