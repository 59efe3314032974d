#!/bin/sh
# Installs the chart on kubectl's current cluster and runs dxctl probe in a Windows pod with a GPU.
# Arguments are helm's, such as --set image.tag=v0.2.0.
set -eu
here=$(dirname "$0")
kubectl apply -f "$here/manifests/namespace.yaml"
helm upgrade --install directx-nri "$here/helm/directx-nri" --namespace directx-nri --wait --timeout 15m "$@"
kubectl delete -f "$here/examples/probe/display.yaml" --ignore-not-found
kubectl apply -f "$here/examples/probe/display.yaml"
# The node pulls an image of several gigabytes.
while kubectl get pod/probe-display --output 'jsonpath={.status.phase}' | grep -E 'Pending|Running'; do sleep 10; done
kubectl logs pod/probe-display
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=1s pod/probe-display
