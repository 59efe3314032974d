#!/bin/sh
# Renders the chart: the plain manifests of deployments/manifests, and one file for
# each set of values in testdata/values, for the tests that walk them.
#
#   deployments/helm/render.sh HELM
set -eu

[ $# -eq 1 ] || {
	echo "render.sh: the only argument is the helm program" >&2
	exit 1
}
here=$(cd "$(dirname "$0")" && pwd)
manifests=$here/../manifests
helm=$1

# render prints the chart by a file of values, without the marks of helm, which
# mean nothing to who applies a file: render VALUES [FLAG...]
render() {
	values=$1
	shift
	"$helm" template directx-nri "$here/directx-nri" --namespace directx-nri --values "$values" "$@" |
		sed -e '/^# Source: /d' -e '/^ *app.kubernetes.io\/managed-by: /d' -e '/^ *helm.sh\/chart: /d' -e '1{/^---$/d;}'
}

# head prints the comment lines that begin a file of values.
head_of() { sed -n '/^#/!q;p' "$1"; }

for file in "$here"/manifests/*.yaml; do
	{
		head_of "$file"
		echo '#'
		echo '# Made of the chart by `make generate`.'
		case $file in
		*/runtimeclass.yaml) render "$file" --show-only templates/runtimeclass.yaml ;;
		*) render "$file" ;;
		esac
	} >"$manifests/${file##*/}.new"
	mv "$manifests/${file##*/}.new" "$manifests/${file##*/}"
done

for file in "$here"/testdata/values/*.yaml; do
	render "$file" >"$here/testdata/rendered/${file##*/}.new"
	mv "$here/testdata/rendered/${file##*/}.new" "$here/testdata/rendered/${file##*/}"
done
