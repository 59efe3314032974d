package main

import (
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	const redacted = "REDACTED"
	const id, token = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"
	const class = "{4d36e968-e325-11ce-bfc1-08002be10318}"
	for text, want := range map[string]string{
		"nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)":      "nothing to hide: C:\\a, PCIROOT(0)#PCI(1B00)",
		"allocation=" + id + " " + token:                    "allocation=" + id + " " + redacted,
		`{"n":1,"allocation":"` + id + `"}`:                 `{"n":1,"allocation":"` + id + `"}`,
		`{"a":"{\"allocation\":\"` + id + `\",` + token:     `{"a":"{\"allocation\":\"` + id + `\",` + redacted,
		"allocation=" + id + token:                          "allocation=" + redacted,
		"allocation= " + token:                              "allocation= " + redacted,
		`{"example.com/allocation": "` + token + `"}`:       `{"example.com/allocation": "` + redacted + `"}`,
		`my_allocation=` + token:                            `my_allocation=` + redacted,
		`"configSHA256": "` + id + token + `", "a"`:         `"configSHA256": "` + id + token + `", "a"`,
		`"inventorySHA256": "` + id + token + `"`:           `"inventorySHA256": "` + id + token + `"`,
		`"otherSHA256": "` + id + token + `"`:               `"otherSHA256": "` + redacted + `"`,
		`{"msg":"a\n` + token + `"}`:                        `{"msg":"a\n` + redacted + `"}`,
		`{"msg":"a\u003e` + token + `"}`:                    `{"msg":"a\u003e` + redacted + `"}`,
		"hash " + token + "00112233 container " + id + id:   "hash " + redacted + " container " + redacted,
		"DIRECTX_ALLOCATION_DISPLAY=" + token:               "DIRECTX_ALLOCATION_DISPLAY=" + redacted,
		`password: hunter2, next`:                           `password: ` + redacted + `, next`,
		`{"msg":"secret=\"a b\" next"}`:                     `{"msg":"secret=\"` + redacted + `\" next"}`,
		`{"driverKey": "` + class + `\\0000","n":1}`:        `{"driverKey": "` + class + `\\0000","n":1}`,
		`{"driverKey":"` + class + `\\0000 a","n":1}`:       `{"driverKey":"` + redacted + `","n":1}`,
		`{"driverKey":"{4d36}\\0000","n":1}`:                `{"driverKey":"` + redacted + `","n":1}`,
		`{"serverKey":"` + class + `\\0000","n":1}`:         `{"serverKey":"` + redacted + `","n":1}`,
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
