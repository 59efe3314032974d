package sbom

import (
	"bytes"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"

	"directx-nri/tools/release/internal/notices"
	"directx-nri/tools/release/internal/product"
)

func subject() Subject {
	return Subject{
		Platform: product.Platform{OS: "linux", Arch: "amd64"}, Version: "v0.1.0", Created: time.Unix(1_700_000_000, 0),
		Binaries: []product.Binary{{Program: "dxctl", File: "dxctl", Data: []byte("x"), Info: &debug.BuildInfo{
			GoVersion: "go1.26.8", Deps: []*debug.Module{{Path: "example.com/Big/thing", Version: "v2.0.0+incompatible", Sum: "h1:x="}},
		}}},
	}
}

func components() []notices.Component {
	return []notices.Component{
		{Path: "example.com/Big/thing", Version: "v2.0.0+incompatible", Sum: "h1:x=", Source: "https://example.com/x.zip", License: "MIT"},
		{Path: "stdlib", Version: "v1.26.8", Source: "https://go.dev/dl/go1.26.8.src.tar.gz", License: "BSD-3-Clause"},
	}
}

func TestDocumentIsValidAndTellsWhatIsLinkedIntoWhat(t *testing.T) {
	t.Parallel()
	text, err := Document(subject(), components())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("the document is of %s, made %s", doc.SPDXVersion, doc.CreationInfo.Created)
	}
	linked := 0
	for _, relationship := range doc.Relationships {
		if relationship.Relationship == "STATIC_LINK" {
			linked++
		}
	}
	if len(doc.Packages) != 3 || len(doc.Files) != 1 || linked != 2 {
		t.Errorf("the document has %d packages, %d files and %d links, want 3, 1 and 2", len(doc.Packages), len(doc.Files), linked)
	}
	for _, want := range []string{`"pkg:golang/example.com/big/thing@v2.0.0%2Bincompatible"`, `"pkg:golang/stdlib@1.26.8"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in the document", want)
		}
	}
}

func TestProgramWithAnUnknownModuleIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := Document(subject(), components()[1:]); err == nil {
		t.Error("a document was written that leaves a module out")
	}
}

// A package with files has to say that they were looked at, and by which sums.
//
// https://spdx.github.io/spdx-spec/v2.3/package-information/#78-files-analyzed-field
func TestPackageOfThePrograms(t *testing.T) {
	t.Parallel()
	one := subject()
	one.Binaries = append(one.Binaries, product.Binary{Program: "directx-nri", File: "directx-nri", Data: []byte("y"), Info: &debug.BuildInfo{}})
	other := one
	other.Binaries = []product.Binary{one.Binaries[1], one.Binaries[0]}
	// printf %s "$(printf x | sha1sum | cut -c-40)" "$(printf y | sha1sum | cut -c-40)" | sha1sum, lesser first
	const want = "71c2e3f122c86733bdf5b1412f898908a1c18c42"
	for _, subject := range []Subject{one, other} {
		text, err := Document(subject, components())
		if err != nil {
			t.Fatal(err)
		}
		doc, err := spdxjson.Read(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		p := doc.Packages[0]
		if !p.FilesAnalyzed || p.PackageVerificationCode == nil || p.PackageVerificationCode.Value != want {
			t.Errorf("analyzed %t, verification code %+v, want %s", p.FilesAnalyzed, p.PackageVerificationCode, want)
		}
		for _, p := range doc.Packages[1:] {
			if p.FilesAnalyzed || p.PackageVerificationCode != nil {
				t.Errorf("%s has no files here", p.PackageName)
			}
		}
	}
}

func TestNamespaceIsOfTheDocumentAlone(t *testing.T) {
	t.Parallel()
	namespaces := make(map[string]bool)
	later, elsewhere := subject(), subject()
	later.Created = later.Created.Add(time.Second)
	elsewhere.Source = "https://example.com/fork"
	for _, subject := range []Subject{subject(), subject(), later, elsewhere} {
		text, err := Document(subject, components())
		if err != nil {
			t.Fatal(err)
		}
		doc, err := spdxjson.Read(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		namespaces[doc.DocumentNamespace] = true
	}
	if len(namespaces) != 3 {
		t.Errorf("three documents have %d namespaces", len(namespaces))
	}
}
