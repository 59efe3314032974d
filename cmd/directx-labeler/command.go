package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/directx-nri/directx-nri/advertiser/nodelabels"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/errlog"
)

// resyncInterval is the time between patches of the node if the file has not changed. Other programs
// may have removed labels.
const resyncInterval = 10 * time.Minute

type options struct {
	node, labelsFile, kubeconfig string
	// pollInterval is the time between reads of the file.
	pollInterval time.Duration
}

func newCommand() *cobra.Command {
	o := options{pollInterval: 10 * time.Second}
	command := &cobra.Command{
		Use:   "directx-labeler",
		Short: "Label this Kubernetes node with what its GPUs are",
		Long: `directx-labeler gives its node the labels directx.microsoft.com/gpu.… of the file that
'directx-advertiser --labels-file' writes. It is for Windows nodes, which
node-feature-discovery does not support. It may patch nodes, and nothing else.`,
		Example: `  directx-labeler --node "$NODE_NAME" --labels-file /directx-nri-labels/labels`,
		Version: cli.Version(version),
		RunE: func(c *cobra.Command, _ []string) error {
			return o.run(c.Context(), errlog.NewLogger(c.ErrOrStderr()))
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.node, "node", "", "`NAME` of the node")
	flags.StringVar(&o.labelsFile, "labels-file", "", "`FILE` of the labels")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`FILE` of the access to the cluster (default: that of the pod)")
	_, _ = command.MarkFlagRequired("node"), command.MarkFlagRequired("labels-file") // They exist.
	cli.AddEnvironment(command)
	return command
}

// run keeps the node's labels equal to those of the file until ctx ends.
func (o options) run(ctx context.Context, log logrus.FieldLogger) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	nodes := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	var lastErr errlog.LastError
	var applied map[string]string
	var patchedAt time.Time
	for {
		labels, err := nodelabels.Read(o.labelsFile)
		if err == nil && (!maps.Equal(labels, applied) || time.Since(patchedAt) >= resyncInterval) {
			if _, err = nodes.Patch(ctx, o.node, types.MergePatchType, patch(labels), metav1.PatchOptions{}); err == nil {
				log.WithField("labels", labels).Info("Labeled the node")
				applied, patchedAt = labels, time.Now()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: directx-advertiser writes it after it has listed the GPUs", err)
		}
		lastErr.Log(log, err, "The node's labels stay as they are", "The node's labels are current again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.pollInterval):
		}
	}
}

// patch returns the JSON merge patch that gives a node these labels, and removes all others of
// package nodelabels.
// https://datatracker.ietf.org/doc/html/rfc7386
func patch(labels map[string]string) []byte {
	values := map[string]*string{}
	for _, name := range nodelabels.Names() {
		values[name] = nil
		if value, ok := labels[name]; ok {
			values[name] = &value
		}
	}
	data, _ := json.Marshal(map[string]any{"metadata": map[string]any{"labels": values}}) // strings only
	return data
}
