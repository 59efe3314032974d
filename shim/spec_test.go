package shim

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/ocispec"
)

func TestMayRequestGPU(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec string
		want bool
	}{
		"empty object":            {`{}`, false},
		"usual":                   {`{"process":{"env":["PATH=C:\\Windows","TITLE=x"]},"windows":{"layerFolders":["C:\\x"]}}`, false},
		"exotic letters":          {`{"x":"XxXxdirecXdirect xx"}`, false},
		"variable":                {`{"process":{"env":["DIRECTX_VISIBLE_DEVICES=all"]}}`, true},
		"variable, another case":  {`{"process":{"env":["directX_visible_devices=all"]}}`, true},
		"word at the beginning":   {`{"directx":1}`, true},
		"annotation":              {`{"annotations":{"directx.microsoft.com/visible-devices":"all"}}`, true},
		"location path":           {`{"windows":{"devices":[{"idType":"vpci-location-path","id":"x"}]}}`, true},
		"class":                   {`{"windows":{"devices":[{"idType":"class","id":"x"}]}}`, true},
		"class in other words":    {`{"windows":{"devices":[{"idType":"vpci-class-guid","id":"x"}]}}`, true},
		"escaped letter":          {`{"process":{"env":["\u0044IRECTX_VISIBLE_DEVICES=all"]}}`, true},
		"escaped letter in class": {`{"idType":"cl\u0061ss"}`, true},
		"escapes of Go's encoder": {`{"a":"sleep 1 \u0026 wait \u003c b \u003e c"}`, false},
		"class as another value":  {`{"process":{"args":["java","classpath","lass","vpci"]}}`, false},
		"escapes of both kinds":   {`{"a":"\u0026\u0044IRECTX"}`, true},
		"escaped slash":           {`{"a":"b\/c"}`, true},
		"escaped quote":           {`{"a":"\\\"b"}`, false},
		"torn":                    {`{"process":{"env":["PATH=`, true},
		"escape at the end":       {`{"a":"\u}`, true},
		"torn in an escape":       {`{"a":"\u00}`, true},
		"not an object":           {`[]`, true},
		"something before it":     {`x{}`, true},
		"nothing":                 {``, true},
	} {
		if got := mayRequestGPU([]byte(test.spec)); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

// TestSimilarAnnotationsDoNotCount: annotations with similar names, and values of other keys, do not count.
func TestSimilarAnnotationsDoNotCount(t *testing.T) {
	t.Parallel()
	const host, sandbox = `"microsoft.com/hostprocess-container":"true"`, `"io.kubernetes.cri.container-type":"sandbox"`
	for annotations, want := range map[string]struct{ host, sandbox bool }{
		host: {host: true}, sandbox: {sandbox: true}, host + "," + sandbox: {host: true, sandbox: true},
		`"microsoft.com/hostprocess-container":"false"`: {}, `"directx.` + host[1:]: {}, `"io.kubernetes.cri.container-type":"container"`: {},
		`"a":"\"microsoft.com/hostprocess-container\":\"true\""`: {},
	} {
		config := []byte(`{"annotations":{` + annotations + `}}`)
		if isHostProcess(config) != want.host || isSandbox(config) != want.sandbox {
			t.Errorf("%s: host process %t, sandbox %t", annotations, isHostProcess(config), isSandbox(config))
		}
	}
}

// FuzzConfigJSON checks that mayRequestGPU is true for each container that requests a GPU.
func FuzzConfigJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"process":{"env":["DIRECTX_VISIBLE_DEVICES=all"]},"linux":{}}`, `{"process":{"env":["\u0044IRECTX_VISIBLE_DEVICES=all"]}}`,
		`{"windows":{"devices":[{"idType":"class","id":"5B45201D-F2F2-4F3B-85BB-30FF1F953599"}]}}`,
		`{"annotations":{"io.kubernetes.cri.container-type":"container"},"windows":{"devices":[{"idType":"directx-nri","id":"x"}]}}`,
		`{"ANNOTATIONS":{"directx.microsoft.com/visible-devices":"0"}}`, `{"windows":{"devices":[{"idType":"v\u0070ci-location-path"}]}} `,
		`{"process":{"env":["DıRECTX_VISIBLE_DEVICES=x"]},"windows":{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		short := !mayRequestGPU(data)
		spec, err := ocispec.ParseSpec(data)
		if err != nil {
			return
		}
		c, ok := decision.ContainerOf(spec.SpecInfo, "id")
		if _, requests := decision.ReadRequest(c); short && ok && requests {
			t.Fatalf("a request was overlooked: %s", data)
		}
		var object map[string]json.RawMessage
		if short && json.Unmarshal(data, &object) == nil && strings.Contains(strings.ToLower(string(data)), "directx") {
			t.Fatalf("a keyword was overlooked: %s", data)
		}
	})
}

func TestIsStart(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{
		"-namespace ns -address a -publish-binary b -id c start": true, "-id delete -debug start": true,
		"-id start -bundle /start delete": false, "-info": false, "start": true, "": false,
	} {
		if s := (shim{args: strings.Fields(args)}); s.isStart() != want {
			t.Errorf("%s: start %t", args, !want)
		}
	}
}
