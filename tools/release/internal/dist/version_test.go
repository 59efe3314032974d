package dist

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"directx-nri/tools/release/internal/files"
	"directx-nri/tools/release/internal/images"
)

func TestChartsVersionsAreSetAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, old := range []string{"0.0.1", "0.0.1 # too", `"0.0.1"`, "'0.0.1' # too"} {
		got, was, err := setVersions([]byte("# ours\nname: x\nversion: 0.0.2\nappVersion: "+old+"\nkubeVersion: '>=1.28'\n"), "0.1.0", "v0.1.0")
		if want := "# ours\nname: x\nversion: \"0.1.0\"\nappVersion: \"v0.1.0\"\nkubeVersion: '>=1.28'\n"; err != nil || string(got) != want || was != "0.0.1" {
			t.Errorf("%s: the chart was of %q and is %q (%v), want %q", old, was, got, err, want)
		}
	}
	for _, chart := range []string{"version: 1\n", "appVersion: 1\n", "version: 1\nversion: 2\nappVersion: 1\n", "version: 1\nappVersion:\n"} {
		if _, _, err := setVersions([]byte(chart), "0.1.0", "v0.1.0"); err == nil {
			t.Errorf("versions were set in %q", chart)
		}
	}
}

func TestManifestsInstallTheVersion(t *testing.T) {
	t.Parallel()
	for manifest, want := range map[string]string{
		"  - image: directx-nri:v0.1.0\n":                                            "  - image: directx-nri:v0.2.0-rc.1\n",
		"    image: directx-nri:v0.1.0\n    app.kubernetes.io/version: \"v0.1.0\"\n": "    image: directx-nri:v0.2.0-rc.1\n    app.kubernetes.io/version: \"v0.2.0-rc.1\"\n",
		"    newTag: v0.1.0\n":                                                       "    newTag: v0.2.0-rc.1\n",
		"# Since v0.1.0.1 and v0x1.0.\n":                                             "# Since v0.1.0.1 and v0x1.0.\n",
		"kind: Namespace\n":                                                          "kind: Namespace\n",
		"    image: other:v0.1.0\n":                                                  "",
		"    image: directx-nri:v0.1.0 # old\n":                                      "",
	} {
		got, err := setManifest([]byte(manifest), "v0.1.0", "v0.2.0-rc.1")
		if string(got) != want || (err != nil) != (want == "") {
			t.Errorf("%q has become %q (%v), want %q", manifest, got, err, want)
		}
	}
}

// TestReadingIsOfTheVersion is about the repository's own files.
func TestReadingIsOfTheVersion(t *testing.T) {
	t.Parallel()
	const root = "../../../.."
	list, err := Reading(root, images.Build{Version: "v7.6.5"})
	if err != nil {
		t.Fatal(err)
	}
	count := func(name, text string) int {
		for _, file := range list {
			if file.Name == name {
				return strings.Count(string(file.Data), text)
			}
		}
		t.Errorf("%s is not there", name)
		return 0
	}
	for name, text := range map[string]string{
		chartFolder + "/Chart.yaml":             `appVersion: "v7.6.5"`,
		manifestsFolder + "/kustomization.yaml": "newTag: v7.6.5",
		manifestsFolder + "/linux.yaml":         "image: directx-nri:v7.6.5",
		manifestsFolder + "/windows.yaml":       `app.kubernetes.io/version: "v7.6.5"`,
		manifestsFolder + "/runtimeclass.yaml":  `app.kubernetes.io/version: "v7.6.5"`,
		"Dockerfile":                            "FROM scratch",
		"Dockerfile.windows":                    "FROM ",
	} {
		if count(name, text) == 0 {
			t.Errorf("%s has no %s", name, text)
		}
	}
	chart, err := os.ReadFile(filepath.Join(root, chartFolder, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, was, err := setVersions(chart, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"linux", "windows", "restore-linux", "restore-windows", "runtimeclass", "kustomization"} {
		if n := count(manifestsFolder+"/"+name+".yaml", was); n > 0 {
			t.Errorf("%s.yaml has %s %d times still", name, was, n)
		}
	}
}

// TestLinksOfTheArchiveResolve in each page of an archive of programs, whose root
// has our licence beside what there is to read.
func TestLinksOfTheArchiveResolve(t *testing.T) {
	t.Parallel()
	list, err := Reading("../../../..", images.Build{Version: "v0.1.0"})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{"LICENSE": true}
	for _, file := range list {
		there[file.Name] = true
	}
	for _, dir := range files.Folders(list) {
		there[dir] = true
	}
	links := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	seen := 0
	for _, file := range list {
		if path.Ext(file.Name) != ".md" {
			continue
		}
		for _, link := range links.FindAllSubmatch(file.Data, -1) {
			target, _, _ := strings.Cut(string(link[1]), "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			seen++
			if !there[path.Join(path.Dir(file.Name), target)] {
				t.Errorf("%s leads to %s, which is not in the archive", file.Name, target)
			}
		}
	}
	if seen < 50 {
		t.Errorf("%d links were looked at", seen)
	}
}
