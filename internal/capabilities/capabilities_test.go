package capabilities

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"directx-nri/internal/win32"
)

func TestSchemasOfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer string
		want   []Schema
		says   string
	}{
		"Windows Server 2019": {`{"Properties":[{"SupportedSchemaVersions":[{"Major":1,"Minor":0},{"Major":2,"Minor":1}]}]}`, []Schema{{1, 0}, {2, 1}}, ""},
		"other properties":    {`{"Properties":[{"CpuGroups":[]},{"SupportedSchemaVersions":[{"Major":2,"Minor":5}],"Build":"x"}],"New":1}`, []Schema{{2, 5}}, ""},
		"no version":          {`{"Properties":[{"SupportedSchemaVersions":[]}]}`, nil, "no schema version"},
		"no property":         {`{}`, nil, "no schema version"},
		"null":                {`null`, nil, "no schema version"},
		"negative":            {`{"Properties":[{"SupportedSchemaVersions":[{"Major":-1,"Minor":0}]}]}`, nil, "parse the answer"},
		"another type":        {`{"Properties":["x"]}`, nil, "parse the answer"},
		"cut short":           {`{"Properties":[`, nil, "parse the answer"},
		"nothing":             {``, nil, "parse the answer"},
	} {
		got, err := ParseSchemas(test.answer)
		if !slices.Equal(got, test.want) || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, %v, want %v and an error that says %q", name, got, err, test.want, test.says)
		}
	}
}

func TestAssignment(t *testing.T) {
	t.Parallel()
	silent := fmt.Errorf("this Windows has no\nHcsGetServiceProperties: %w", errors.ErrUnsupported)
	for name, test := range map[string]struct {
		Capabilities
		individual bool
		says       string
	}{
		"Windows Server 2019":           {Capabilities{Windows: build(17763), Schemas: []Schema{{1, 0}, {2, 1}}}, false, "supports schema 2.1, and single devices require 2.2"},
		"just new enough":               {Capabilities{Windows: build(20348), Schemas: []Schema{{1, 0}, {2, 2}}}, true, "supports schema 2.2"},
		"the newest is not the last":    {Capabilities{Windows: build(20348), Schemas: []Schema{{2, 10}, {2, 2}, {1, 0}}}, true, "supports schema 2.10"},
		"a new major version":           {Capabilities{Windows: build(30000), Schemas: []Schema{{2, 1}, {3, 0}}}, true, "supports schema 3.0"},
		"a large minor of an old major": {Capabilities{Windows: build(17763), Schemas: []Schema{{1, 9}}}, false, "supports schema 1.9"},
		"HCS is silent on a new build":  {Capabilities{Windows: build(20348), SchemasErr: silent}, true, "Windows build 20348 assigns single devices"},
		"HCS is silent on an old build": {Capabilities{Windows: build(17763), SchemasErr: silent}, false, "HCS did not report its schemas (this Windows has no HcsGetServiceProperties: unsupported operation)"},
		"HCS names none":                {Capabilities{Windows: build(17763)}, false, "HCS did not report its schemas (no schema version)"},
	} {
		got := test.Assignment()
		if got.Individual != test.individual || !strings.Contains(got.Reason, test.says) || strings.Contains(got.Reason, "\n") {
			t.Errorf("%s: %+v, want %t and %q", name, got, test.individual, test.says)
		}
	}
}

func build(n uint32) win32.Version { return win32.Version{Major: 10, Build: n} }

func TestAsk(t *testing.T) {
	t.Parallel()
	got, err := Ask()
	if runtime.GOOS != "windows" {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v, want errors.ErrUnsupported", err)
		}
		return
	}
	if err != nil || got.Windows.Build == 0 || got.SchemasErr == nil && len(got.Schemas) == 0 {
		t.Errorf("%+v, %v", got, err)
	}
	t.Logf("%s: %+v", got.Windows, got.Assignment())
}

func FuzzParseSchemas(f *testing.F) {
	f.Add(`{"Properties":[{"SupportedSchemaVersions":[{"Major":2,"Minor":2}]}]}`)
	f.Add(`{"Properties":[null,{}]}`)
	f.Fuzz(func(t *testing.T, answer string) {
		schemas, err := ParseSchemas(answer)
		if (err == nil) != (len(schemas) > 0) {
			t.Errorf("%v, %v", schemas, err)
		}
	})
}
