package noderuntime

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/nodegpus"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// addForceFlag adds the flag of a command that calls [restarter.checkHolders].
func (r *restarter) addForceFlag(command *cobra.Command) {
	command.Flags().BoolVar(&r.force, "force", false, "continue although running containers with GPUs will not start again")
}

// checkHolders returns an error that names the running containers with an interlock, because they
// do not start again without directx-nri. It prints the error as a warning with --force, or if the
// caller changes nothing and it is unknown which containers run.
func (r *restarter) checkHolders(ctx context.Context, stderr io.Writer, changes bool) error {
	entries, pods, err := nodegpus.ReadAllocations(ctx, r.stateDir, r.CRISocket)
	names := runningHolders(entries, pods)
	warn := r.force || err != nil && !changes
	switch {
	case err != nil:
		err = fmt.Errorf("running containers with GPUs will not start again afterward, and it is unknown which of %s run: %w", cmp.Or(strings.Join(names, ", "), "them"), err)
	case len(names) > 0:
		err = fmt.Errorf("%d running container(s) with GPUs will not start again afterward: %s: delete their pods first",
			len(names), strings.Join(names, ", "))
	default:
		return nil
	}
	if !warn {
		return fmt.Errorf("%w; to continue anyway, add --force", err)
	}
	fmt.Fprintf(stderr, "warning: %s\n", strings.ReplaceAll(errlog.Text(err), "\n", "; "))
	return nil
}

// runningHolders returns the containers of entries whose pods run, or all containers if pods is
// nil. Containers that get their GPUs from the kubelet have no interlock and are left out.
func runningHolders(entries []allocation.Entry, pods criclient.Pods) []string {
	var names []string
	for _, e := range entries {
		if h := e.Holder; h != nil && !e.ByKubelet && (pods == nil || nodegpus.IsRunning(pods, e)) {
			names = append(names, h.PodNamespace+"/"+h.PodName+"/"+h.Container)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
