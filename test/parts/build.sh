#!/bin/sh
# Builds the stock parts that the end-to-end suite runs against the product:
# containerd, ctr and the runc shim, and the kubelet, at the versions that the
# two modules beside this file pin, into .parts/bin of the repository. What was
# built from the same sources before is not built again. The two that are
# packages, runc and a static busybox, are installed when they are missing,
# which needs root and apt-get.
#
#   test/parts/build.sh            build and install what is missing
#   test/parts/build.sh --force    build all again
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=${DIRECTX_NRI_PARTS:-$root/.parts/bin}
force=${1:-}

# say prints one line about what happens now.
say() { printf 'parts: %s\n' "$*"; }

# fail ends the script with a reason and what to do about it.
fail() {
	printf 'parts: %s\n' "$*" >&2
	exit 1
}

# stamp prints what a build of module $1 depends on: its pinned sources, the
# toolchain and this script.
stamp() {
	{
		cat "$1/go.mod" "$1/go.sum" "$0"
		(cd "$1" && go version)
	} | sha256sum | cut -d' ' -f1
}

# current tells whether the stamp file of module $1 is the one given in $2 and
# every program named after that is there.
current() {
	module=$1 want=$2
	shift 2
	[ "$force" != --force ] || return 1
	[ "$(cat "$bin/.$module.stamp" 2>/dev/null)" = "$want" ] || return 1
	for program; do
		[ -x "$bin/$program" ] || return 1
	done
}

# build builds packages of a module:
# build MODULE LDFLAGS IMPORT-PATH...
build() {
	module=$1 ldflags=$2
	shift 2
	want=$(stamp "$here/$module")
	programs=
	for package; do
		programs="$programs ${package##*/}"
	done
	# shellcheck disable=SC2086 # a list of names
	if current "$module" "$want" $programs; then
		say "$module is up to date:$programs"
		return
	fi
	say "building$programs (a first build takes some minutes)"
	# The stamp goes first and comes last, so that a build that is cut short
	# never looks finished.
	rm -f "$bin/.$module.stamp"
	(cd "$here/$module" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags "$ldflags" -o "$bin/" "$@")
	printf '%s\n' "$want" >"$bin/.$module.stamp"
}

# version_of prints the version of module path $2 that module $1 requires.
version_of() { (cd "$here/$1" && go list -m -f '{{.Version}}' "$2"); }

# have_static_busybox tells whether busybox is there and needs no libraries:
# the suite's image has none.
have_static_busybox() {
	path=$(command -v busybox) || return 1
	! ldd "$path" >/dev/null 2>&1
}

packages() {
	missing=
	command -v runc >/dev/null || missing="$missing runc"
	have_static_busybox || missing="$missing busybox-static"
	[ -n "$missing" ] || {
		say "runc and busybox are installed"
		return
	}
	command -v apt-get >/dev/null || fail "these are missing:$missing. Install them with this system's package manager."
	[ "$(id -u)" = 0 ] || fail "these are missing:$missing. Run as root, or: sudo apt-get install$missing"
	say "installing$missing"
	apt-get update -q >/dev/null
	# shellcheck disable=SC2086 # a list of names
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing >/dev/null
}

command -v go >/dev/null || fail "the go command is missing: install Go, https://go.dev/dl"
mkdir -p "$bin"
packages

containerd=$(version_of containerd github.com/containerd/containerd)
build containerd "-s -w -X github.com/containerd/containerd/version.Version=$containerd" \
	github.com/containerd/containerd/cmd/containerd \
	github.com/containerd/containerd/cmd/ctr \
	github.com/containerd/containerd/cmd/containerd-shim-runc-v2

# The kubelet refuses to start without knowing its version.
kubernetes=$(version_of kubernetes k8s.io/kubernetes)
major=${kubernetes#v} major=${major%%.*}
minor=${kubernetes#v*.} minor=${minor%%.*}
v=k8s.io/component-base/version
build kubernetes "-s -w -X $v.gitVersion=$kubernetes -X $v.gitMajor=$major -X $v.gitMinor=$minor" \
	k8s.io/kubernetes/cmd/kubelet

say "ready in $bin"
