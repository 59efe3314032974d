#!/bin/sh
# Creates an AKS cluster with a Windows node with a GPU and AKS's GRID driver, installs the chart, and
# runs nvidia-smi in a pod. Arguments are helm's, such as --set image.tag=v0.2.0. What exists is kept.
# Nothing of this has run on Azure.
set -eu
: "${LOCATION:=westus2}" "${GROUP:=directx-nri}" "${CLUSTER:=directx-nri}" "${SIZE:=Standard_NV36ads_A10_v5}"

# feature prints the state of the preview.
feature() {
	az feature show --namespace Microsoft.ContainerService --name WindowsGPUPreview --query properties.state --output tsv
}
az extension add --upgrade --name aks-preview
az feature register --namespace Microsoft.ContainerService --name WindowsGPUPreview
until [ "$(feature)" = Registered ]; do sleep 30; done
az provider register --namespace Microsoft.ContainerService --wait

az group create --name "$GROUP" --location "$LOCATION"
# Windows nodes need Azure CNI.
az aks show --resource-group "$GROUP" --name "$CLUSTER" >/dev/null 2>&1 ||
	az aks create --resource-group "$GROUP" --name "$CLUSTER" --node-count 1 --network-plugin azure --generate-ssh-keys
az aks nodepool show --resource-group "$GROUP" --cluster-name "$CLUSTER" --name gpu >/dev/null 2>&1 ||
	az aks nodepool add --resource-group "$GROUP" --cluster-name "$CLUSTER" --name gpu --node-count 1 \
		--os-type Windows --os-sku Windows2022 --node-vm-size "$SIZE" --driver-type GRID
az aks get-credentials --resource-group "$GROUP" --name "$CLUSTER" --overwrite-existing

# AKS's own plugin offers the same GPU as microsoft.com/directx. Neither counts the other's containers.
kubectl create quota no-microsoft-directx --hard=requests.microsoft.com/directx=0 --dry-run=client --output yaml | kubectl apply -f -
exec "$(dirname "$0")/../try.sh" --set windows.config.injection=kubelet --set 'windows.nodeSelector.kubernetes\.azure\.com/agentpool=gpu' "$@"
