#!/bin/sh
# Creates an AMI and an EKS cluster with a Windows node with a GPU, installs the chart, and runs
# dxctl probe in a pod. Arguments are helm's, such as --set image.tag=v0.2.0. What exists is kept.
set -eu
here=$(dirname "$0")

# setting prints a setting of cluster.yaml's metadata.
setting() { sed -n "s/^  $1: \"*\([^\"]*\)\"*\$/\1/p" "$here/cluster.yaml"; }
cluster=$(setting name) region=$(setting region) version=$(setting version)
name=directx-nri-windows-2022-$version

# ami prints the ID of the AMI, or None.
ami() {
	aws ec2 describe-images --region "$region" --owners self --filters "Name=name,Values=$name" \
		--query 'Images[0].ImageId' --output text
}
if [ "$(ami)" = None ]; then
	packer init "$here/ami.pkr.hcl"
	packer build -var "region=$region" -var "name=$name" -var "kubernetes_version=$version" "$here/ami.pkr.hcl"
fi
image=$(ami)

if eksctl get cluster --region "$region" --name "$cluster" >/dev/null 2>&1; then
	eksctl utils write-kubeconfig --region "$region" --cluster "$cluster"
else
	sed "s/ami-0123456789abcdef0/$image/" "$here/cluster.yaml" | eksctl create cluster -f -
fi
exec "$here/../try.sh" "$@"
