#!/bin/sh
# Installs the chart on kubectl's current cluster and runs dxctl probe in a Windows pod with a GPU.
# Arguments are helm's, such as --set image.tag=v0.2.0. The program is that of 'make images'.
set -eu
here=$(dirname "$0")
kubectl apply -f "$here/manifests/namespace.yaml"
helm upgrade --install directx-nri "$here/helm/directx-nri" --namespace directx-nri --wait --timeout 15m "$@"
kubectl delete -f "$here/examples/probe/display.yaml" --ignore-not-found
kubectl apply -f "$here/examples/probe/display.yaml"
# The node pulls an image of several gigabytes.
kubectl wait --for=condition=ready --timeout=30m pod/probe-display
kubectl cp "$here/../bin/windows-amd64/dxctl.exe" probe-display:/dxctl.exe
kubectl exec probe-display -- 'C:\dxctl.exe' probe
