//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"directx-nri/test/bed"
)

// TestHandlerOfItsOwn starts only the pods of one runtime handler through the
// shim, a handler that `dxctl runtime configure` added, with no
// plugin on the node. This kubelet has no API server and so no RuntimeClass:
// its pods run by containerd's default handler, which is first another one and
// then that one.
func TestHandlerOfItsOwn(t *testing.T) {
	const handler = "gpus"
	n := bed.Start(t, bed.Options{
		NoKubelet: true, Shim: true, HandlerApart: true, Replicas: 4, Inventory: bed.NewInventory(2, 0),
		AdvertiserFlags: []string{"--served-by", "shim"},
	})
	defer func() {
		if t.Failed() {
			n.DumpLogs(t)
		}
	}()
	mustContain(t, "what dxctl prints", n.ConfigureContainerd(t, "--add-handler="+handler), "kind: RuntimeClass", "handler: "+handler)
	n.Kubelet.Start(t)
	n.WaitKubelet(t)
	n.Advertiser.Start(t)
	n.WaitOffered(t)
	mustContain(t, "the advertiser's log", n.Advertiser.Log(0), "handlers="+handler, "others=runc", "default=runc")

	refused := n.Apply(t, bed.GPUPod("refused", 1))
	onlyInit := n.Apply(t, bed.Pod{
		Name:       "only-init",
		Init:       []bed.Container{{Name: "first", Display: 1, Script: "true"}},
		Containers: []bed.Container{{Name: "main"}},
	})
	plain := n.Apply(t, bed.GPUPod("plain", 0))
	mustContain(t, "what the pod waits for", waitsFor(t, n, refused, "main"),
		"default/"+refused, "runtime handler runc", "RuntimeClass whose handler is "+handler, "dxctl runtime configure --restart")
	mustContain(t, "what the pod with an init container waits for", waitsFor(t, n, onlyInit, "first"),
		bed.Display, "init container", "runtime handler "+handler, "dxctl runtime configure --restart")
	n.WaitRunning(t, plain)

	config, err := os.ReadFile(n.ContainerdConfig())
	if err != nil {
		t.Fatal(err)
	}
	config = bytes.Replace(config, []byte(`default_runtime_name = "runc"`), []byte(`default_runtime_name = "`+handler+`"`), 1)
	if err := os.WriteFile(n.ContainerdConfig(), config, 0o644); err != nil {
		t.Fatal(err)
	}
	n.RestartContainerd(t)
	n.WaitKubelet(t)
	served := n.Apply(t, bed.GPUPod("served", 2))
	n.Nudge(t, refused, onlyInit)
	n.WaitRunning(t, refused, onlyInit, served, plain)
	n.CheckDevices(t)
}

// waitsFor waits until a container waits for something other than its turn, and
// returns what.
func waitsFor(t *testing.T, n *bed.Node, pod, container string) string {
	t.Helper()
	var message string
	n.WaitStatus(t, pod, container+" is refused", func(s bed.Status) error {
		c, _ := s.Container(container)
		if c.State.Running != nil || c.State.Terminated != nil {
			t.Fatalf("container %s of pod %s was started: %v", container, pod, s)
		}
		if c.State.Waiting == nil || !strings.Contains(c.State.Waiting.Message, "PreStartContainer") {
			return errors.New("it has no such message")
		}
		message = c.State.Waiting.Message
		return nil
	})
	return message
}
