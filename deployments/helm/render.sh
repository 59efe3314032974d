#!/bin/sh
# Renders the plain manifests of deployments/manifests from the chart.
#
#   deployments/helm/render.sh HELM [OUTPUT-DIRECTORY]
set -eu

[ $# -ge 1 ] && [ $# -le 2 ] || {
	echo "usage: render.sh HELM [OUTPUT-DIRECTORY]" >&2
	exit 1
}
here=$(cd "$(dirname "$0")" && pwd)
helm=$1
out=${2:-$here/../manifests}

for file in "$here"/manifests/*.yaml; do
	name=${file##*/}
	set --
	case $name in
	linux.yaml) set -- --set-file "linux.inventory=$here/../inventory/linux-gpu-pv.yaml" ;;
	esac
	{
		# The comment at the start of the file.
		sed -n '/^#/!q;p' "$file"
		echo '#'
		echo '# Rendered from the chart by `make generate`.'
		# Without what refers to helm.
		"$helm" template directx-nri "$here/directx-nri" --skip-tests --namespace directx-nri --values "$file" "$@" |
			sed -e '/^# Source: /d' -e '/^ *app.kubernetes.io\/managed-by: /d' -e '/^ *helm.sh\/chart: /d' -e '1{/^---$/d;}'
	} >"$out/$name.new"
	mv "$out/$name.new" "$out/$name"
done
