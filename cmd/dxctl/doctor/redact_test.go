package doctor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	const id, token = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"
	for text, want := range map[string]string{
		"nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)":    "nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)",
		"allocation=" + id + " " + token:                  "allocation=" + id + " " + Redacted,
		`{"msg":"a\n` + token + `"}`:                      `{"msg":"a\n` + Redacted + `"}`,
		`{"msg":"a\u003e` + token + `"}`:                  `{"msg":"a\u003e` + Redacted + `"}`,
		"hash " + token + "00112233 container " + id + id: "hash " + Redacted + " container " + Redacted,
		"DIRECTX_ALLOCATION_DISPLAY=" + token:             "DIRECTX_ALLOCATION_DISPLAY=" + Redacted,
		`password: hunter2, next`:                         `password: ` + Redacted + `, next`,
		`{"passwordHash":"a b\"c","next":1}`:              `{"passwordHash":"` + Redacted + `","next":1}`,
		`{"msg":"secret=\"a b\" next"}`:                   `{"msg":"secret=\"` + Redacted + `\" next"}`,
		`API_KEY='a b' next`:                              `API_KEY='` + Redacted + `' next`,
		"https://me:hunter2@example.com/a?sig=x y":        "https://" + Redacted + "@example.com/a?" + Redacted + " y",
		"https://me:hun/t@er2@example.com/a":              "https://" + Redacted + "@example.com/a",
		"Authorization: Bearer abcdefgh":                  "Authorization: " + Redacted + " " + Redacted,
		"x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.abc y":       "x " + Redacted + " y",
		"-----BEGIN KEY-----\nabc\n-----END KEY-----\nz":  Redacted + "\nz",
		"-----BEGIN KEY-----\nabc":                        Redacted,
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
		if got := string(Redact([]byte(before+" "+token+" "+after), nil)); strings.Contains(got, token) {
			t.Errorf("%q", got)
		}
	})
}

// No error in redacted facts quotes a file, and the original facts are unchanged.
func TestRedactFacts(t *testing.T) {
	t.Parallel()
	err := func() error {
		return errors.Join(fs.ErrPermission, errors.New("line 3: cannot unmarshal !!str `hunter2` into x; \"hunter3\" 'hunter4'; field hunter5 not found in type y; key \"hunter6\" already set"))
	}
	f := Facts{
		Config: Config{Err: err(), Invalid: err()}, GPUs: GPUs{Err: err()}, Containerd: Containerd{FileErr: err(), Overrides: []string{"'hunter'"}, BadImports: []string{"'hunter'"}},
		Records: Records{Damaged: []FileError{{"x", err()}}}, Leftovers: Leftovers{Damaged: []FileError{{"x", err()}}, FailedCause: "'hunter'"},
	}
	r := f.Redact()
	var all strings.Builder
	for _, err := range []error{r.Config.Err, r.Config.Invalid, r.GPUs.Err, r.Containerd.FileErr, r.Records.Damaged[0].Err, r.Leftovers.Damaged[0].Err} {
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "line 3") {
			t.Errorf("%v", err)
		}
		all.WriteString(err.Error())
	}
	all.WriteString(r.Containerd.Overrides[0] + r.Containerd.BadImports[0] + r.Leftovers.FailedCause)
	if strings.Contains(all.String(), "hunter") {
		t.Errorf("%s", all.String())
	}
	if !strings.Contains(f.Containerd.Overrides[0]+f.Records.Damaged[0].Err.Error(), "hunter") {
		t.Error("the original facts are changed")
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]string{100: "one\ntwo\nthree\n", 14: "one\ntwo\nthree\n", 8: "three\n", 7: "three\n", 2: ""} {
		if got, err := Tail(file, limit); err != nil || string(got) != want {
			t.Errorf("%d: %q, %v, want %q", limit, got, err, want)
		}
	}
	if _, err := Tail(dir, 10); err == nil {
		t.Error("no error for a directory")
	}
}
