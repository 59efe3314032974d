package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // as in kubectl
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/directx-nri/directx-nri/internal/cli"
)

func newCommand() *cobra.Command {
	rules, overrides, format := clientcmd.NewDefaultClientConfigLoadingRules(), clientcmd.ConfigOverrides{}, ""
	command := &cobra.Command{
		Use:   "kubectl-directx",
		Short: "Show the GPUs, their use and the problems of all nodes",
		Long: `'kubectl directx' shows what the nodes of a cluster publish about their DirectX GPUs: labels,
resources, metrics of directx-advertiser, and events of pods. You must be allowed to list
nodes, pods and events, and to get pods/proxy.`,
		Example:     "  kubectl directx\n  kubectl directx --context production -o json",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl directx"},
		Version:     cli.Version(version),
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides).ClientConfig()
			if err != nil {
				return err
			}
			// readCluster sends a request for each node.
			config.Timeout, config.QPS = 30*time.Second, -1
			// Only the kinds of this group are used. Without the others, the program is smaller.
			scheme := runtime.NewScheme()
			schemeErr := corev1.AddToScheme(scheme)
			config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
			client, err := rest.UnversionedRESTClientFor(config)
			if err := errors.Join(err, schemeErr); err != nil {
				return err
			}
			state, err := readCluster(c.Context(), client)
			if err != nil {
				return err
			}
			return printRows(c.OutOrStdout(), format, state.rows())
		},
	}
	flags := command.Flags()
	flags.StringVar(&rules.ExplicitPath, "kubeconfig", "", "`FILE` of the access to the cluster")
	flags.StringVar(&overrides.CurrentContext, "context", "", "`NAME` of a context in it")
	cli.AddOutputFlag(command, &format, cli.Table, cli.JSON, cli.YAML)
	return command
}

// activePods is the field selector of the pods that can hold GPUs.
const activePods = "status.phase!=Succeeded,status.phase!=Failed"

type cluster struct {
	nodes  []corev1.Node
	pods   []corev1.Pod   // that can hold GPUs
	events []corev1.Event // warnings
	// metrics are the metrics of directx-advertiser, and scrapeErrors why they are missing, by node.
	metrics      map[string]metrics
	scrapeErrors map[string]error
}

// metrics are the metrics of directx-advertiser on a node, by name.
type metrics map[string]*dto.MetricFamily

// readCluster returns the state of the cluster. An error of reading metrics is in scrapeErrors.
func readCluster(ctx context.Context, client rest.Interface) (cluster, error) {
	get := func(path string) rest.Result { return client.Get().RequestURI("/api/v1/" + path).Do(ctx) }
	var nodes corev1.NodeList
	var pods corev1.PodList
	var events corev1.EventList
	for path, list := range map[string]runtime.Object{
		"nodes": &nodes, "pods?fieldSelector=" + activePods: &pods, "events?fieldSelector=type=Warning": &events,
	} {
		if err := get(path).Into(list); err != nil {
			return cluster{}, err
		}
	}
	c := cluster{
		nodes: nodes.Items, pods: pods.Items, events: events.Items,
		metrics: map[string]metrics{}, scrapeErrors: map[string]error{},
	}
	var mu sync.Mutex
	var scrapes errgroup.Group
	scrapes.SetLimit(32) // The API server proxies each.
	for _, pod := range c.pods {
		port := advertiserPort(pod)
		if port == "" || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		scrapes.Go(func() error {
			families, err := parseMetrics(get(fmt.Sprintf("namespaces/%s/pods/%s:%s/proxy/metrics", pod.Namespace, pod.Name, port)))
			mu.Lock()
			defer mu.Unlock()
			c.metrics[pod.Spec.NodeName], c.scrapeErrors[pod.Spec.NodeName] = families, err
			return nil
		})
	}
	return c, errors.Join(scrapes.Wait(), ctx.Err())
}

func parseMetrics(answer rest.Result) (metrics, error) {
	if err := answer.Error(); err != nil { // Unlike that of Raw, it has the server's message.
		return nil, err
	}
	text, _ := answer.Raw()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

// advertiserPort returns the port of the metrics of a pod with directx-advertiser, "" for another pod.
// The chart's settings change the names and labels of pods, but not these.
func advertiserPort(pod corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name == "metrics" && c.Name == "advertiser" && strings.Contains(strings.Join(c.Command, " "), "directx-advertiser") {
				return fmt.Sprint(port.ContainerPort)
			}
		}
	}
	return ""
}
