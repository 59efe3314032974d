//go:build chart && unix

package deployments

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
)

// eksPrograms are stand-ins of the programs that eks/create.sh calls. They write their command
// lines to $LOG, and the cluster's file to $LOG.yaml. With $EXISTS set, all resources exist.
const eksPrograms = `#!/bin/sh
program=${0##*/}
echo "$program $*" >>"$LOG"
case "$program $*" in
"aws ec2 describe-images "*)
	if [ -n "$EXISTS" ] || grep -q '^packer build' "$LOG"; then echo ami-0feed; else echo None; fi ;;
"eksctl get "*) [ -n "$EXISTS" ] ;;
"eksctl create cluster -f -") cat >"$LOG.yaml" ;;
"kubectl apply -f -") cat >/dev/null ;;
"kubectl "*" -f "*) test -f "$3" ;;
"helm "*) test -f "${*##* }" ;;
esac
`

// runEKS runs eks/create.sh with stand-ins, and returns their command lines and the cluster's file.
func runEKS(t *testing.T, exists string) (lines []string, cluster []byte) {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"aws", "eksctl", "helm", "kubectl", "packer"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(eksPrograms), 0o700); err != nil { //nolint:gosec // It is a program.
			t.Fatal(err)
		}
	}
	log := filepath.Join(dir, "log")
	command := exec.Command("sh", "eks/create.sh", "--set", "image.tag=v1.2.3", "--values", "helm/testdata/values/server2019.yaml")
	command.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "LOG=" + log, "EXISTS=" + exists}
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err = os.ReadFile(log + ".yaml")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n"), cluster
}

// The script creates what does not exist, with values that the chart has, and runs an example.
func TestEKS(t *testing.T) {
	t.Parallel()
	creates := []string{"packer init", "packer build", "eksctl create cluster"}
	for exists, want := range map[string][]string{"": creates, "1": nil} {
		lines, _ := runEKS(t, exists)
		var created []string
		for _, line := range lines {
			if at := slices.IndexFunc(creates, func(create string) bool { return strings.HasPrefix(line, create+" ") }); at >= 0 {
				created = append(created, creates[at])
			}
		}
		if diff := cmp.Diff(want, created); diff != "" {
			t.Errorf("exists %q: created (-want +got): %s", exists, diff)
		}
		if last := lines[len(lines)-1]; last != "kubectl logs job/nvidia-smi-display" {
			t.Errorf("the last command is %s", last)
		}
		at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "helm ") })
		_, sets, _ := strings.Cut(lines[at], "--timeout 15m ")
		decoded, err := decode([]byte(mustTemplate(t, "", strings.Fields(sets)...)))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range decoded {
			if set, ok := o.(*appsv1.DaemonSet); ok && !strings.HasSuffix(set.Spec.Template.Spec.Containers[0].Image, ":v1.2.3") {
				t.Errorf("%s: image %s", set.Name, set.Spec.Template.Spec.Containers[0].Image)
			}
		}
	}
}

// The AMI is for the cluster's region and version, and Packer's template has the variables and files.
func TestEKSCluster(t *testing.T) {
	t.Parallel()
	lines, text := runEKS(t, "")
	type group struct {
		Name, AMIFamily, AMI, InstanceType string
		VolumeSize, DesiredCapacity        int
	}
	var cluster struct {
		APIVersion, Kind              string
		Metadata                      struct{ Name, Region, Version string }
		ManagedNodeGroups, NodeGroups []group
	}
	if err := unmarshalStrict(text, &cluster); err != nil {
		t.Fatal(err)
	}
	if len(cluster.ManagedNodeGroups) != 1 || len(cluster.NodeGroups) != 1 || cluster.NodeGroups[0].AMI != "ami-0feed" {
		t.Errorf("%+v", cluster)
	}
	build := fmt.Sprintf("packer build -var region=%s -var name=directx-nri-windows-2022-%[2]s -var kubernetes_version=%[2]s eks/ami.pkr.hcl", cluster.Metadata.Region, cluster.Metadata.Version)
	if cluster.Metadata.Region == "" || cluster.Metadata.Version == "" || !slices.Contains(lines, build) {
		t.Errorf("no %s in %q", build, lines)
	}

	const file = "eks/ami.pkr.hcl"
	template, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	formatted, err := exec.Command("go", "tool", "-modfile=../tools/go.mod", "hclfmt", "-check", file).Output()
	if diff := cmp.Diff(string(template), string(formatted)); err != nil || diff != "" {
		t.Errorf("%v: not formatted (-file +want): %s", err, diff)
	}
	for _, match := range regexp.MustCompile(`-var (\w+)=`).FindAllStringSubmatch(build, -1) {
		if !strings.Contains(string(template), "variable \""+match[1]+"\" {") {
			t.Errorf("%s has no variable %s", file, match[1])
		}
	}
	scripts := regexp.MustCompile(`path\.root}/([a-z0-9.]+)"`).FindAllStringSubmatch(string(template), -1)
	for _, match := range scripts {
		text, err := os.ReadFile("eks/" + match[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPowerShell(string(text)); err != nil {
			t.Errorf("%s: %v", match[1], err)
		}
	}
	if files, err := filepath.Glob("eks/*.ps1"); err != nil || len(files) != len(scripts) {
		t.Errorf("%v, but the template uses %v (%v)", files, scripts, err)
	}
}

// The example that installs a driver runs on labeled nodes only, has no access to the cluster, and sets the
// environment variables that its script reads.
func TestDriverInstall(t *testing.T) {
	t.Parallel()
	decoded, err := decode(readExample(t, "driver-install/daemonset.yaml"))
	if err != nil || len(decoded) != 1 {
		t.Fatalf("%d objects, %v", len(decoded), err)
	}
	pod := decoded[0].(*appsv1.DaemonSet).Spec.Template.Spec //nolint:forcetypeassert // The test fails.
	if pod.NodeSelector["driver-install"] != "true" || *pod.AutomountServiceAccountToken || !*pod.SecurityContext.WindowsOptions.HostProcess {
		t.Errorf("%+v", pod)
	}
	container := pod.Containers[0]
	set := map[string]bool{}
	for _, variable := range container.Env {
		set[variable.Name] = true
	}
	script := string(readExample(t, "driver-install/install.ps1"))
	read := map[string]bool{}
	for _, match := range regexp.MustCompile(`\$env:(DRIVER_\w+)`).FindAllStringSubmatch(script, -1) {
		read[match[1]] = true
	}
	if diff := cmp.Diff(set, read); diff != "" {
		t.Errorf("environment variables (-set +read): %s", diff)
	}
	if err := checkPowerShell(script); err != nil {
		t.Error(err)
	}
	if file := container.Command[len(container.Command)-1]; file != `C:\driver-install\install.ps1` || container.VolumeMounts[0].MountPath != "/driver-install" {
		t.Errorf("runs %s, and mounts %s", file, container.VolumeMounts[0].MountPath)
	}
	create := "kubectl create configmap " + pod.Volumes[0].ConfigMap.Name + " -n driver-install --from-file=install.ps1"
	if !strings.Contains(string(readExample(t, "driver-install/README.md")), create) {
		t.Errorf("the README does not run %s", create)
	}
}

// powerShellSkip matches comments and strings. They have no escapes and no nested quotes in our scripts.
var powerShellSkip = regexp.MustCompile(`'[^'\n]*'|"[^"\n]*"|#[^\n]*`)

// checkPowerShell refuses brackets and quotes without a counterpart, and what is not ASCII: without a byte
// order mark, Windows PowerShell reads a file in the system's code page.
func checkPowerShell(text string) error {
	var open []rune
	for _, r := range powerShellSkip.ReplaceAllString(text, "") {
		switch at := strings.IndexRune(")}]", r); {
		case r > '~' || r == '\'' || r == '"':
			return fmt.Errorf("unexpected %q", r)
		case strings.ContainsRune("({[", r):
			open = append(open, r)
		case at >= 0 && (len(open) == 0 || open[len(open)-1] != rune("({["[at])):
			return fmt.Errorf("unexpected %q", r)
		case at >= 0:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("%q is not closed", open)
	}
	return nil
}

func TestCheckPowerShell(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"throw \"it's {\" # don't (\n@{ a = $b[0] }": true,
		"if ($a) {": false, "($a])": false, "'a": false, "\u2013a": false, "}": false,
	} {
		if err := checkPowerShell(text); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
