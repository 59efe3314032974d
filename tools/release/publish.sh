#!/bin/bash
# publish.sh VERSION IMAGE CHARTS [DIRECTORY]: push the image and the chart of DIRECTORY, by default out/release, to
# their repositories, and print the names and digests that a signature is for. What exists is not replaced.
# `make publish` runs it.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$1 image=$2 charts=$3 from=${4:-out/release}
helm=${DIRECTX_NRI_PARTS:-.parts/bin}/helm
crane=$(go tool -modfile=tools/release/go.mod -n crane)
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT

for name in "$image:$version" "$charts/directx-nri:${version#v}"; do
	if answer=$("$crane" digest "$name" 2>&1); then
		echo "$name exists: a release is not replaced; make one with another version" >&2
		exit 1
	elif [[ ! $answer =~ MANIFEST_UNKNOWN|NAME_UNKNOWN|"404 Not Found" ]]; then
		echo "whether $name exists is unknown: $answer" >&2
		exit 1
	fi
done
tar --extract --directory "$layout" --file "$from/directx-nri-image-$version.tar"
pushed=$("$crane" push "$layout" "$image:$version")
flags=()
[[ $charts != localhost:* ]] || flags=(--plain-http)
"$helm" push "${flags[@]}" "$from/directx-nri-${version#v}.tgz" "oci://$charts" >&2
cat <<END
image=$image
image_digest=${pushed#*@}
chart=$charts/directx-nri
chart_digest=$("$crane" digest "$charts/directx-nri:${version#v}")
END
