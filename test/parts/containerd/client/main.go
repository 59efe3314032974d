//go:build windows

// The client does with a real containerd.exe what ctr.exe has no command for,
// with the calls that its users make: the CRI plugin's runtime path, runtime
// options and sandboxes, many containers at once.
//
//	client wake PIPE...    wait for pipes, open and close them: Wine loses their
//	                       first connection
//	client run < REQUEST   create and start containers, all at once
//
// A request is JSON, and so is what is printed, one line for each container.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1/options"
	"github.com/containerd/containerd"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/cio"
	"github.com/containerd/containerd/containers"
	"github.com/containerd/containerd/namespaces"
	"github.com/containerd/containerd/oci"
	"github.com/containerd/containerd/sandbox"
	"google.golang.org/protobuf/types/known/anypb"
)

// request has the containers to start.
type request struct {
	Address    string      `json:"address"`
	Namespace  string      `json:"namespace"`
	Containers []container `json:"containers"`
}

// container is one of them. Its layers are named in its spec.
type container struct {
	ID   string `json:"id"`
	Spec string `json:"spec"` // path of the file
	// Runtime is the runtime's name. RuntimePath is its program when that is
	// not the one that the name leads to.
	Runtime     string `json:"runtime"`
	RuntimePath string `json:"runtimePath"`
	// RunhcsOptions sends runhcs' own options along, as the CRI plugin does.
	RunhcsOptions bool `json:"runhcsOptions"`
	// Sandbox is the ID of its pod's sandbox, as the CRI plugin of containerd 2 sends it, or its
	// own if it is a sandbox, which is recorded first.
	Sandbox string `json:"sandbox"`
	// Raw puts the spec's bytes into the container as they are. Such a task is
	// created and never started.
	Raw bool `json:"raw"`
}

// answer is the result of a container.
type answer struct {
	ID    string `json:"id"`
	PID   uint32 `json:"pid,omitempty"`
	Error string `json:"error,omitempty"`
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "client: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) > 1 && args[0] == "wake":
		wake(args[1:])
		return nil
	case len(args) == 1 && args[0] == "run":
		return start(ctx)
	}
	return errors.New("usage: client wake PIPE... | client run < REQUEST")
}

// wake waits for the pipes as long as it is let.
func wake(pipes []string) {
	for _, name := range pipes {
		for {
			pipe, err := os.OpenFile(name, os.O_RDWR, 0)
			if err == nil {
				_ = pipe.Close()
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func start(ctx context.Context) error {
	var r request
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	client, err := containerd.New(r.Address)
	if err != nil {
		return fmt.Errorf("connect to containerd at %s: %w", r.Address, err)
	}
	defer client.Close()
	ctx = namespaces.WithNamespace(ctx, r.Namespace)
	answers := make([]answer, len(r.Containers))
	var all sync.WaitGroup
	for i, c := range r.Containers {
		all.Go(func() {
			answers[i] = answer{ID: c.ID}
			begin := startOne
			if c.Raw {
				begin = createRaw
			}
			pid, err := begin(ctx, client, c)
			if answers[i].PID = pid; err != nil {
				answers[i].Error = err.Error()
			}
		})
	}
	all.Wait()
	out := json.NewEncoder(os.Stdout)
	for _, a := range answers {
		if err := out.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// startOne creates and starts a container and leaves it running. What failed
// to start is removed, as the CRI plugin, ctr and nerdctl do.
func startOne(ctx context.Context, client *containerd.Client, c container) (pid uint32, err error) {
	var runtimeOptions any
	if c.RunhcsOptions {
		runtimeOptions = &options.Options{}
	}
	containerOptions := []containerd.NewContainerOpts{
		containerd.WithRuntime(c.Runtime, runtimeOptions),
		containerd.WithNewSpec(oci.WithSpecFromFile(c.Spec)),
	}
	switch c.Sandbox {
	case "":
	case c.ID:
		if _, err := client.SandboxStore().Create(ctx, sandbox.Sandbox{ID: c.ID}); err != nil {
			return 0, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, client.SandboxStore().Delete(ctx, c.ID))
			}
		}()
	default:
		containerOptions = append(containerOptions, containerd.WithSandbox(c.Sandbox))
	}
	created, err := client.NewContainer(ctx, c.ID, containerOptions...)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, created.Delete(ctx))
		}
	}()
	var taskOptions []containerd.NewTaskOpts
	if c.RuntimePath != "" {
		taskOptions = append(taskOptions, containerd.WithRuntimePath(c.RuntimePath))
	}
	task, err := created.NewTask(ctx, cio.NullIO, taskOptions...)
	if err != nil {
		return 0, err
	}
	if err := task.Start(ctx); err != nil {
		_, deleteErr := task.Delete(ctx)
		return 0, errors.Join(err, deleteErr)
	}
	return task.Pid(), nil
}

// createRaw creates a container whose spec is whatever the file holds, which
// the client's own calls refuse, and its task.
func createRaw(ctx context.Context, client *containerd.Client, c container) (pid uint32, err error) {
	spec, err := os.ReadFile(c.Spec)
	if err != nil {
		return 0, err
	}
	store := client.ContainerService()
	_, err = store.Create(ctx, containers.Container{
		ID:      c.ID,
		Runtime: containers.RuntimeInfo{Name: c.Runtime},
		Spec:    &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: spec},
	})
	if err != nil {
		return 0, err
	}
	response, err := client.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: c.ID})
	if err != nil {
		return 0, errors.Join(err, store.Delete(ctx, c.ID))
	}
	return response.Pid, nil
}
