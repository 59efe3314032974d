package dist

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"

	"directx-nri/tools/release/internal/files"
	"directx-nri/tools/release/internal/product"
)

// Folders of the repository whose files name the version that they install.
const (
	chartFolder     = "deployments/helm/" + product.Name
	manifestsFolder = "deployments/manifests"
)

// setVersion has the chart among list, and the manifests that are rendered from it,
// install version, such as v0.1.0, in place of the one that they are for.
func setVersion(list []files.File, version string) error {
	chart := -1
	for i := range list {
		if list[i].Name == chartFolder+"/Chart.yaml" {
			chart = i
		}
	}
	if chart < 0 {
		return fmt.Errorf("%s is no chart: it has no Chart.yaml", chartFolder)
	}
	changed, old, err := setVersions(list[chart].Data, strings.TrimPrefix(version, "v"), version)
	if err != nil {
		return fmt.Errorf("setting the chart's version: %w", err)
	}
	list[chart].Data = changed
	for i := range list {
		if path.Dir(list[i].Name) != manifestsFolder {
			continue
		}
		if list[i].Data, err = setManifest(list[i].Data, old, version); err != nil {
			return fmt.Errorf("setting the version of %s: %w", list[i].Name, err)
		}
	}
	return nil
}

// setVersions sets the two versions in a Chart.yaml and leaves all else as it
// is, comments too. It returns the appVersion that was there as well.
func setVersions(chart []byte, version, appVersion string) (changed []byte, old string, err error) {
	for _, field := range []struct{ key, value string }{{"version", version}, {"appVersion", appVersion}} {
		line := regexp.MustCompile(`(?m)^` + field.key + `:[ \t]*(?:"([^"\n]*)"|'([^'\n]*)'|([^ \t#\n]*)).*$`)
		found := line.FindAllSubmatch(chart, -1)
		if len(found) != 1 {
			return nil, "", fmt.Errorf("%d lines of Chart.yaml begin with %s:, not one", len(found), field.key)
		}
		old = string(bytes.Join(found[0][1:], nil))
		chart = line.ReplaceAllLiteral(chart, []byte(field.key+`: "`+field.value+`"`))
	}
	if old == "" {
		return nil, "", fmt.Errorf("the chart has no appVersion, by which the manifests' versions are known")
	}
	return chart, old, nil
}

// setManifest puts a version in the place of old in a manifest: in the image's
// tag, the label, and kustomize's new tag. That old is anywhere else is an error,
// since that would install or name what is not of the release.
func setManifest(manifest []byte, old, version string) ([]byte, error) {
	quoted := regexp.QuoteMeta(old)
	line := regexp.MustCompile(`(?m)^([ -]*(?:image: ` + product.Name + `:|app\.kubernetes\.io/version: "|newTag: "?))` + quoted + `("?)$`)
	for i, part := range line.Split(string(manifest), -1) {
		if regexp.MustCompile(`(^|[^0-9A-Za-z.+-])` + quoted + `($|[^0-9A-Za-z.+-])`).MatchString(part) {
			return nil, fmt.Errorf("after %d places where it is known, %s is in one that is not", i, old)
		}
	}
	return line.ReplaceAll(manifest, []byte("${1}"+version+"${2}")), nil
}
