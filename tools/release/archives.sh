#!/bin/bash
# archives.sh VERSION PLATFORM...: write into out/release an archive with the programs for each platform, the
# packages for Linux, the chart, the images, and their checksums. `make release` runs it.
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

# same DIRECTORY: leave out what is for developers, and give files the same modes and times everywhere.
same() {
	find "$1" \( -name '.*' -o -name '*.go' \) -type f -delete
	chmod -R u=rwX,go=rX "$1"
	find "$1" -exec touch --date "@$SOURCE_DATE_EPOCH" {} +
}

# pack DIRECTORY NAME ARCHIVE
pack() {
	LC_ALL=C tar --create --directory "$1" --sort name --owner 0 --group 0 --numeric-owner "$2" | gzip -n >"out/release/$3"
}

home=https://$(go list -m)
mkdir -p "$stage/shared/deployments/helm"
cp -R -- *.md Dockerfile* docs out/help "$stage/shared"
cp --parents advertiser/config/*.schema.json "$stage/shared" # The documentation links to them.
cp -R deployments/{README.md,try.sh,config,eks,examples,inventory,manifests,systemd} "$stage/shared/deployments"
cp -R deployments/helm/directx-nri "$stage/shared/deployments/helm"
chart=$stage/shared/deployments/helm/directx-nri/Chart.yaml
old=$(sed -n 's/^appVersion: //p' "$chart")
sed -i "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" "$chart"
sed -i "s/$old/$version/g" "$stage"/shared/deployments/manifests/*.yaml

same "$stage/shared"
pack "$stage/shared/deployments/helm" directx-nri "directx-nri-${version#v}.tgz"
for platform in "$@"; do
	name=directx-nri-$version-$platform
	cp -R "$stage/shared" "$stage/$name"
	cp "bin/$platform"/* "out/documents/$platform"/* "$stage/$name"
	same "$stage/$name"
	if [[ $platform == windows-* ]]; then
		go -C tools/release run . zip "$stage/$name" "$PWD/out/release/$name.zip"
		continue
	fi
	pack "$stage" "$name" "$name.tar.gz"
	for packager in deb rpm; do
		FILES=$stage/$name VERSION=$version ARCH=${platform#linux-} HOMEPAGE=$home go tool -modfile=tools/release/go.mod \
			nfpm package --config tools/release/package/nfpm.yaml --packager $packager --target out/release/
	done
done
cp out/images/*.tar out/release
cd out/release
LC_ALL=C sha256sum -- * >SHA256SUMS
