#!/bin/bash
# archives.sh VERSION PLATFORM...: write into out/release an archive with the programs for each platform, the
# packages for Linux, the chart, the images and their checksums. `make release` runs it.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$1
shift
if [[ ! $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
	echo "\"$version\" is not the version of a release: make release VERSION=v0.1.0" >&2
	exit 1
fi
umask 022
rm -rf out/release
mkdir -p out/release
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

# pack DIRECTORY NAME ARCHIVE: the result does not depend on this machine.
pack() {
	LC_ALL=C tar --create --directory "$1" --exclude '.*' --exclude '*.go' --sort name --mtime "@$SOURCE_DATE_EPOCH" \
		--owner 0 --group 0 --numeric-owner --mode u=rwX,go=rX "$2" | gzip -n >"out/release/$3"
}

mkdir -p "$stage/shared/deployments/helm"
cp -R -- *.md Dockerfile* docs out/help "$stage/shared"
cp --parents internal/config/*.schema.json "$stage/shared" # The documentation links to them.
cp -R deployments/{README.md,config,inventory,examples,manifests,systemd} "$stage/shared/deployments"
cp -R deployments/helm/directx-nri "$stage/shared/deployments/helm"
chart=$stage/shared/deployments/helm/directx-nri/Chart.yaml
old=$(sed -n 's/^appVersion: //p' "$chart")
sed -i "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" "$chart"
sed -i "s/$old/$version/g" "$stage"/shared/deployments/manifests/*.yaml

pack "$stage/shared/deployments/helm" directx-nri "directx-nri-${version#v}.tgz"
for platform in "$@"; do
	name=directx-nri-$version-$platform
	cp -R "$stage/shared" "$stage/$name"
	cp "bin/$platform"/* "out/documents/$platform"/* "$stage/$name"
	pack "$stage" "$name" "$name.tar.gz"
	[[ $platform == linux-* ]] || continue
	chmod -R u=rwX,go=rX "$stage/$name"
	find "$stage/$name" tools/release/package -exec touch --date "@$SOURCE_DATE_EPOCH" {} +
	for packager in deb rpm; do
		FILES=$stage/$name VERSION=$version ARCH=${platform#linux-} HOMEPAGE=https://$(go list -m) go tool -modfile=tools/release/go.mod \
			nfpm package --config tools/release/package/nfpm.yaml --packager $packager --target out/release/
	done
done
cp out/images/*.tar out/release
cd out/release
LC_ALL=C sha256sum -- * >SHA256SUMS
