// Package sbom lists what is in an image or archive as an SPDX document.
//
// https://spdx.github.io/spdx-spec/v2.3/
package sbom

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // SPDX 2.3 asks for SHA-1 of each file.
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"

	"directx-nri/tools/release/internal/notices"
	"directx-nri/tools/release/internal/product"
)

// Subject is what a document is about.
type Subject struct {
	Platform product.Platform
	Version  string
	Source   string // URL of the sources, or empty
	Created  time.Time
	Binaries []product.Binary
}

// Document returns the SPDX 2.3 document for a subject, as JSON: the product, its
// programs, and for each the components that are linked into it.
func Document(subject Subject, components []notices.Component) ([]byte, error) {
	whole := &v2_3.Package{
		PackageName:             product.Name,
		PackageSPDXIdentifier:   "Package-" + product.Name,
		PackageVersion:          subject.Version,
		PackageDownloadLocation: notices.NoAssertion,
		PackageLicenseConcluded: product.License,
		PackageLicenseDeclared:  product.License,
		PackageCopyrightText:    notices.NoAssertion,
		PackageSummary:          product.Description,
		PrimaryPackagePurpose:   "APPLICATION",

		// A package with files in it has to be one whose files were looked at.
		FilesAnalyzed:               true,
		PackageVerificationCode:     verification(subject.Binaries),
		PackageLicenseInfoFromFiles: []string{notices.NoAssertion},
	}
	if subject.Source != "" {
		whole.PackageHomePage = subject.Source
	}
	doc := &v2_3.Document{
		SPDXVersion:    v2_3.Version,
		DataLicense:    v2_3.DataLicense,
		SPDXIdentifier: "DOCUMENT",
		DocumentName:   fmt.Sprintf("%s-%s-%s", product.Name, subject.Version, subject.Platform),
		CreationInfo: &v2_3.CreationInfo{
			Created:  subject.Created.UTC().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: product.Name + "-release"}},
		},
		Packages:      []*v2_3.Package{whole},
		Relationships: []*v2_3.Relationship{relate("DOCUMENT", "DESCRIBES", whole.PackageSPDXIdentifier)},
	}
	ids := make(map[string]common.ElementID)
	for _, component := range components {
		ids[component.Path+"@"+component.Version] = identifier(component)
		doc.Packages = append(doc.Packages, packageOf(component))
	}
	for _, binary := range subject.Binaries {
		file := fileOf(binary)
		doc.Files = append(doc.Files, file)
		doc.Relationships = append(doc.Relationships, relate(whole.PackageSPDXIdentifier, "CONTAINS", file.FileSPDXIdentifier))
		for _, component := range components {
			if component.Path == "stdlib" {
				doc.Relationships = append(doc.Relationships, relate(file.FileSPDXIdentifier, "STATIC_LINK", ids[component.Path+"@"+component.Version]))
			}
		}
		for _, module := range product.Modules([]product.Binary{binary}) {
			id, ok := ids[module.Path+"@"+module.Version]
			if !ok {
				return nil, fmt.Errorf("%s contains %s %s, which is not among the components", binary.File, module.Path, module.Version)
			}
			doc.Relationships = append(doc.Relationships, relate(file.FileSPDXIdentifier, "STATIC_LINK", id))
		}
	}
	// A namespace has to be unique to the document; it need not lead anywhere.
	text, err := encode(doc)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	doc.DocumentNamespace = fmt.Sprintf("https://spdx.org/spdxdocs/%s-%s", doc.DocumentName, hex.EncodeToString(sum[:]))
	return encode(doc)
}

func encode(doc *v2_3.Document) ([]byte, error) {
	var b bytes.Buffer
	if err := spdxjson.Write(doc, &b, spdxjson.Indent("  "), spdxjson.EscapeHTML(false)); err != nil {
		return nil, fmt.Errorf("encoding the SPDX document: %w", err)
	}
	return b.Bytes(), nil
}

// verification is the checksum of the programs' checksums.
//
// https://spdx.github.io/spdx-spec/v2.3/package-information/#79-package-verification-code-field
func verification(binaries []product.Binary) *common.PackageVerificationCode {
	var sums []string
	for _, binary := range binaries {
		sum := sha1.Sum(binary.Data) //nolint:gosec // See above.
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	slices.Sort(sums)
	sum := sha1.Sum([]byte(strings.Join(sums, ""))) //nolint:gosec // See above.
	return &common.PackageVerificationCode{Value: hex.EncodeToString(sum[:])}
}

func relate(a common.ElementID, kind string, b common.ElementID) *v2_3.Relationship {
	return &v2_3.Relationship{
		RefA: common.DocElementID{ElementRefID: a}, Relationship: kind, RefB: common.DocElementID{ElementRefID: b},
	}
}

// identifier has letters, digits, points and dashes only.
func identifier(component notices.Component) common.ElementID {
	other := regexp.MustCompile(`[^A-Za-z0-9.-]+`)
	return common.ElementID("Package-go-" + other.ReplaceAllString(component.Path+"-"+component.Version, "-"))
}

// packageURL is a component's name in
// https://github.com/package-url/purl-spec/blob/main/types-doc/golang-definition.md,
// which wants small letters, and the plus of a version escaped.
func packageURL(component notices.Component) string {
	if component.Path == "stdlib" {
		return "pkg:golang/stdlib@" + strings.TrimPrefix(component.Version, "v")
	}
	return "pkg:golang/" + strings.ToLower(component.Path) + "@" + strings.ReplaceAll(component.Version, "+", "%2B")
}

func packageOf(component notices.Component) *v2_3.Package {
	info := "part of the Go distribution"
	if component.Sum != "" {
		// Not among the checksums: it is of the module's files and their names, not
		// of the archive at the download location.
		info = "Go module, checked by the go command against " + component.Sum + " of go.sum"
	}
	return &v2_3.Package{
		PackageName:             component.Path,
		PackageSPDXIdentifier:   identifier(component),
		PackageVersion:          component.Version,
		PackageDownloadLocation: component.Source,
		PackageSourceInfo:       info,
		PackageLicenseConcluded: component.License,
		PackageLicenseDeclared:  component.License,
		PackageCopyrightText:    notices.NoAssertion,
		PrimaryPackagePurpose:   "LIBRARY",
		PackageExternalReferences: []*v2_3.PackageExternalReference{{
			Category: "PACKAGE-MANAGER", RefType: "purl", Locator: packageURL(component),
		}},
	}
}

func fileOf(binary product.Binary) *v2_3.File {
	short, long := sha1.Sum(binary.Data), sha256.Sum256(binary.Data) //nolint:gosec // See above.
	return &v2_3.File{
		FileName:           "./" + binary.File,
		FileSPDXIdentifier: common.ElementID("File-" + binary.Program),
		FileTypes:          []string{"BINARY"},
		Checksums: []common.Checksum{
			{Algorithm: common.SHA1, Value: hex.EncodeToString(short[:])},
			{Algorithm: common.SHA256, Value: hex.EncodeToString(long[:])},
		},
		LicenseConcluded:   notices.NoAssertion,
		LicenseInfoInFiles: []string{notices.NoAssertion},
		FileCopyrightText:  notices.NoAssertion,
		FileComment:        binary.Info.Path + ", built with " + binary.Info.GoVersion,
	}
}
