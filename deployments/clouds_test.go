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

	"sigs.k8s.io/yaml"
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

// The script creates what does not exist, with values that the chart has and an AMI for the cluster's region and
// version, and runs an example.
func TestEKS(t *testing.T) {
	t.Parallel()
	if lines, _ := runEKS(t, "1"); slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, " build ") || strings.Contains(line, " create ") }) {
		t.Errorf("what exists is created: %q", lines)
	}
	lines, text := runEKS(t, "")
	var cluster struct {
		Metadata   struct{ Region, Version string }
		NodeGroups []struct{ AMI string }
	}
	if err := yaml.Unmarshal(text, &cluster); err != nil || len(cluster.NodeGroups) != 1 || cluster.NodeGroups[0].AMI != "ami-0feed" {
		t.Errorf("%v: %+v", err, cluster)
	}
	build := fmt.Sprintf("packer build -var region=%s -var name=directx-nri-windows-2022-%[2]s -var kubernetes_version=%[2]s eks/ami.pkr.hcl", cluster.Metadata.Region, cluster.Metadata.Version)
	for _, want := range []string{build, "eksctl create cluster -f -", "kubectl logs pod/probe-display"} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %s in %q", want, lines)
		}
	}
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "helm ") })
	_, flags, _ := strings.Cut(lines[at], "--timeout 15m ")
	if rendered := mustTemplate(t, "", strings.Fields(flags)...); !strings.Contains(rendered, ":v1.2.3") {
		t.Errorf("%s does not set the image: %s", lines[at], rendered)
	}

	template, err := os.ReadFile("eks/ami.pkr.hcl")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`-var (\w+)=`).FindAllStringSubmatch(build, -1) {
		if !strings.Contains(string(template), "variable \""+match[1]+"\" {") {
			t.Errorf("Packer's template has no variable %s", match[1])
		}
	}
	for _, match := range regexp.MustCompile(`path\.root}/([a-z0-9.]+)"`).FindAllStringSubmatch(string(template), -1) {
		if _, err := os.Stat("eks/" + match[1]); err != nil {
			t.Error(err)
		}
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
	if file := container.Command[len(container.Command)-1]; file != `C:\driver-install\install.ps1` || container.VolumeMounts[0].MountPath != "/driver-install" {
		t.Errorf("runs %s, and mounts %s", file, container.VolumeMounts[0].MountPath)
	}
}
