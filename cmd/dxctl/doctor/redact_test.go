package doctor

import (
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	const redacted = "REDACTED"
	const id, token = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"
	for text, want := range map[string]string{
		"nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)":      "nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)",
		"allocation=" + id + " " + token:                    "allocation=" + redacted + " " + redacted,
		`{"msg":"a\n` + token + `"}`:                        `{"msg":"a\n` + redacted + `"}`,
		`{"msg":"a\u003e` + token + `"}`:                    `{"msg":"a\u003e` + redacted + `"}`,
		"hash " + token + "00112233 container " + id + id:   "hash " + redacted + " container " + redacted,
		"DIRECTX_ALLOCATION_DISPLAY=" + token:               "DIRECTX_ALLOCATION_DISPLAY=" + redacted,
		`password: hunter2, next`:                           `password: ` + redacted + `, next`,
		`{"msg":"secret=\"a b\" next"}`:                     `{"msg":"secret=\"` + redacted + `\" next"}`,
		`{"driverKey":"{4d36}\\0000","n":1}`:                `{"driverKey":"` + redacted + `","n":1}`,
		`password='a b' "key": "a\"b" c`:                    `password='` + redacted + `' "key": "` + redacted + `" c`,
		"https://me:hunter2@example.com/a?sig=x y":          "https://" + redacted + "example.com/a?" + redacted + " y",
		`https://me:hun'ter2@example.com/a`:                 "https://" + redacted + "example.com/a",
		`https://me:a\u0026b@example.com/?a=b\u0026sig=x y`: "https://" + redacted + "example.com/?" + redacted + " y",
		"https://me:hun/t@er2@example.com/a":                "https://" + redacted + "example.com/a",
		`https://me:hun"ter2@example.com/a`:                 "https://" + redacted + "example.com/a",
		`https://me:hun\ter2@example.com/a`:                 "https://" + redacted + "example.com/a",
		`{"msg":"https://me:hun\"ter2@example.com/a"}`:      `{"msg":"https://` + redacted + `example.com/a"}`,
		`{"msg":"https://me:hun\\ter2@example.com/a"}`:      `{"msg":"https://` + redacted + `example.com/a"}`,
		`{"msg":"https://example.com/a", "to": "a@b"}`:      `{"msg":"https://example.com/a", "to": "a@b"}`,
		"Authorization: Bearer abcdefgh":                    "Authorization: Bearer " + redacted,
	} {
		if got := string(redact([]byte(text))); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", text, got, want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("before ", " after")
	f.Add(`{"a":"`, `"}`)
	f.Fuzz(func(t *testing.T, before, after string) {
		const token = "ffeeddccbbaa99887766554433221100"
		if got := string(redact([]byte(before + " " + token + " " + after))); strings.Contains(got, token) {
			t.Errorf("%q", got)
		}
	})
}
