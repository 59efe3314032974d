#!/bin/sh
# Builds the stock parts that the end-to-end suites run against the product, at
# the versions that the modules beside this file pin, into .parts of the
# repository. What was built from the same sources before is not built again.
# What is a Debian package is installed when it is missing, which needs root and
# apt-get.
#
#   test/parts/build.sh [GROUP...] [--force]
#
# Groups, `linux` when none is named:
#
#   linux     bin/                   containerd 1.7, ctr, the runc shim, nerdctl, the kubelet
#             packages               runc, crun, busybox-static, systemd
#   helm      bin/                   helm
#             packages               busybox-static, rpm
#   cluster   what linux and helm have, and
#             cluster/               etcd, the API server, the controller manager,
#                                    the scheduler and kubectl of the kubelet's version
#             packages               containernetworking-plugins, skopeo
#   docker    bin/                   dockerd and docker
#             packages               podman
#   versions  containerd2/           containerd 2, ctr, the runc shim, runc, the newest kubelet,
#                                    the same with the container manager of Windows
#             packages               gcc, libc6-dev, libseccomp-dev, pkg-config
#   windows   windows/               containerd 1.7, ctr, the runhcs shim it names,
#                                    and the test doubles of test/windows/doubles
#             windows-aks2/          containerd 2.0 of AKS, the runhcs shim it names
#             windows-newest/        containerd 2, ctr, the newest runhcs shim
#             packages               wine64, gcc, gcc-mingw-w64-x86-64,
#                                    g++-mingw-w64-x86-64, directx-headers-dev
#   all       all of them
#
# --force builds again what is up to date. DIRECTX_NRI_PARTS names another place
# for bin/; the other directories are beside it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=${DIRECTX_NRI_PARTS:-$root/.parts/bin}
parts=$(dirname "$bin")
force=
tags=
export GOTOOLCHAIN=auto # The newest kubelet needs a newer Go.

# say prints one line about what happens now.
say() { printf 'parts: %s\n' "$*"; }

# fail ends the script with a reason and what to do about it.
fail() {
	printf 'parts: %s\n' "$*" >&2
	exit 1
}

# stamp prints what a build of module $1 depends on: its pinned sources and its
# own, the toolchain and this script.
stamp() {
	{
		cat "$1/go.mod" "$1/go.sum" "$0"
		find "$1" -name '*.go' -exec cat {} +
		(cd "$1" && go version)
	} | sha256sum | cut -d' ' -f1
}

# current reports whether the stamp file $1 holds $2 and every program named after
# that lies beside it.
current() {
	file=$1 want=$2
	shift 2
	[ -z "$force" ] || return 1
	[ "$(cat "$file" 2>/dev/null)" = "$want" ] || return 1
	for program; do
		[ -x "${file%/*}/$program" ] || return 1
	done
}

# build builds packages of a module for an operating system:
# build MODULE GOOS DIR LDFLAGS IMPORT-PATH... With tags, it has those and uses
# the C compiler.
build() {
	module=$1 goos=$2 dir=$3 ldflags=$4
	shift 4
	mkdir -p "$dir"
	want=$(stamp "$here/$module")
	stampfile=$dir/.$module.stamp
	suffix=
	[ "$goos" != windows ] || suffix=.exe
	programs=
	for package; do
		programs="$programs ${package##*/}$suffix"
	done
	# shellcheck disable=SC2086 # a list of names
	if current "$stampfile" "$want" $programs; then
		say "${dir##*/} of module $module is up to date:$programs"
		return
	fi
	say "building ${dir##*/} of module $module:$programs (a first build takes some minutes)"
	# The stamp goes first and comes last, so that a build that is cut short
	# never looks finished.
	rm -f "$stampfile"
	(cd "$here/$module" && GOOS=$goos CGO_ENABLED=$((${#tags} > 0)) GOFLAGS=-mod=readonly go build -tags "$tags" -trimpath -buildvcs=false -ldflags "$ldflags" -o "$dir/" "$@")
	printf '%s\n' "$want" >"$stampfile"
}

# version_of prints the version of module path $2 that module $1 requires.
version_of() { (cd "$here/$1" && go list -m -f '{{.Version}}' "$2"); }

# install installs the packages that are named, if any.
install() {
	[ $# -gt 0 ] || return 0
	command -v apt-get >/dev/null || fail "these are missing: $*. Install them with this system's package manager."
	[ "$(id -u)" = 0 ] || fail "these are missing: $*. Run as root, or: sudo apt-get install --no-install-recommends $*"
	say "installing $*"
	apt-get update -q >/dev/null
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -q -y --no-install-recommends "$@" >/dev/null
}

# have_static_busybox reports whether busybox is there and needs no libraries:
# the suite's image has none.
have_static_busybox() {
	path=$(command -v busybox) || return 1
	! ldd "$path" >/dev/null 2>&1
}

# have_wine looks where Debian puts the program as well: it is on PATH only with
# the package wine, which is not needed.
have_wine() { command -v wine64 >/dev/null || [ -x /usr/lib/wine/wine64 ]; }

containerd1=github.com/containerd/containerd
containerd2=github.com/containerd/containerd/v2
nerdctl=github.com/containerd/nerdctl
runhcs=github.com/Microsoft/hcsshim/cmd/containerd-shim-runhcs-v1

# major and minor print those of a version such as v1.34.3.
major() { echo "${1#v}" | cut -d. -f1; }
minor() { echo "$1" | cut -d. -f2; }

# flags_kubernetes prints the linker's flags for Kubernetes' programs of module $1:
# the kubelet refuses to start without knowing its version.
flags_kubernetes() {
	kubernetes=$(version_of "$1" k8s.io/kubernetes)
	v=k8s.io/component-base/version
	echo "-s -w -X $v.gitVersion=$kubernetes -X $v.gitMajor=$(major "$kubernetes") -X $v.gitMinor=$(minor "$kubernetes")"
}

# flags_helm prints the linker's flags for helm: without them it renders a chart
# as if for a Kubernetes of years ago. Kubernetes 1.N is client-go v0.N.
flags_helm() {
	missing=
	command -v rpm >/dev/null || missing=rpm
	have_static_busybox || missing="$missing busybox-static"
	# shellcheck disable=SC2086 # a list of names
	install $missing
	client=$(version_of helm k8s.io/client-go)
	flags="-s -w -X helm.sh/helm/v3/internal/version.version=$(version_of helm helm.sh/helm/v3)"
	for package in chartutil lint/rules; do
		v=helm.sh/helm/v3/pkg/$package
		flags="$flags -X $v.k8sVersionMajor=1 -X $v.k8sVersionMinor=$(minor "$client")"
	done
	echo "$flags"
}

# flags1 and flags2 print the linker's flags for containerd of module $1.
flags1() { echo "-s -w -X $containerd1/version.Version=$(version_of "$1" $containerd1)"; }
flags2() { echo "-s -w -X $containerd2/version.Version=$(version_of "$1" $containerd2)"; }

linux() {
	missing=
	for program in runc crun; do
		command -v $program >/dev/null || missing="$missing $program"
	done
	have_static_busybox || missing="$missing busybox-static"
	[ -x /lib/systemd/systemd ] || missing="$missing systemd"
	# shellcheck disable=SC2086 # a list of names
	install $missing

	build containerd linux "$bin" "$(flags1 containerd)" \
		$containerd1/cmd/containerd $containerd1/cmd/ctr $containerd1/cmd/containerd-shim-runc-v2

	build nerdctl linux "$bin" "-s -w -X $nerdctl/pkg/version.Version=$(version_of nerdctl $nerdctl)" $nerdctl/cmd/nerdctl

	build kubernetes linux "$bin" "$(flags_kubernetes kubernetes)" k8s.io/kubernetes/cmd/kubelet
}

# kubelet_windows builds kubelet-windows: a kubelet for Linux that allocates devices when it creates a container, as
# the kubelet of Windows does. In a copy of its module, the container manager of Windows takes the place of the one
# of Linux, and the file whose functions only the latter calls is reduced to what other files use.
kubelet_windows() {
	dir=$parts/containerd2
	want=$(stamp "$here/kubernetes-new")
	stampfile=$dir/.kubelet-windows.stamp
	if current "$stampfile" "$want" kubelet-windows; then
		say "kubelet-windows is up to date"
		return
	fi
	say "building kubelet-windows"
	rm -f "$stampfile"
	copy=$parts/kubelet-windows
	rm -rf "$copy"
	mkdir -p "$copy/kubernetes"
	source=$(cd "$here/kubernetes-new" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
	for name in go.mod cmd pkg plugin third_party; do
		cp -R "$source/$name" "$copy/kubernetes/"
	done
	chmod -R u+w "$copy"
	manager=$copy/kubernetes/pkg/kubelet/cm
	for name in container_manager cpu_following_store; do
		sed '/^\/\/go:build /d' "$manager/${name}_windows.go" >"$manager/${name}_linux.go"
	done
	cat >"$manager/node_container_manager_linux.go" <<-'EOF'
		package cm

		import "k8s.io/klog/v2"

		const defaultNodeAllocatableCgroupName = "kubepods"

		func getContainer(klog.Logger, int) (string, error) { return "", nil }
	EOF
	cp "$here/kubernetes-new/go.mod" "$here/kubernetes-new/go.sum" "$copy/"
	(cd "$here/kubernetes-new" && go mod edit -replace "k8s.io/kubernetes=$copy/kubernetes" "$copy/go.mod" &&
		CGO_ENABLED=0 GOFLAGS=-mod=mod go build -modfile="$copy/go.mod" -trimpath -buildvcs=false \
			-ldflags "$(flags_kubernetes kubernetes-new)" -o "$dir/kubelet-windows" k8s.io/kubernetes/cmd/kubelet)
	rm -rf "$copy"
	printf '%s\n' "$want" >"$stampfile"
}

helm() {
	missing=
	command -v rpm >/dev/null || missing=rpm
	have_static_busybox || missing="$missing busybox-static"
	# shellcheck disable=SC2086 # a list of names
	install $missing
	build helm linux "$bin" "$(flags_helm)" helm.sh/helm/v3/cmd/helm
}

cluster() {
	linux
	helm

	missing=
	[ -x /usr/lib/cni/bridge ] || missing=containernetworking-plugins
	command -v skopeo >/dev/null || missing="$missing skopeo"
	# shellcheck disable=SC2086 # a list of names
	install $missing

	build etcd linux "$parts/cluster" "-s -w" ./etcd
	build kubernetes linux "$parts/cluster" "$(flags_kubernetes kubernetes)" \
		k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager \
		k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kubectl
}

docker() {
	command -v podman >/dev/null || install podman
	build docker linux "$bin" "-s -w" github.com/docker/docker/cmd/dockerd github.com/docker/cli/cmd/docker
}

versions() {
	build containerd2 linux "$parts/containerd2" "$(flags2 containerd2)" \
		$containerd2/cmd/containerd $containerd2/cmd/ctr $containerd2/cmd/containerd-shim-runc-v2
	build kubernetes-new linux "$parts/containerd2" "$(flags_kubernetes kubernetes-new)" k8s.io/kubernetes/cmd/kubelet
	kubelet_windows
	missing=
	command -v gcc >/dev/null || missing="gcc libc6-dev"
	command -v pkg-config >/dev/null || missing="$missing pkg-config"
	[ -e /usr/include/seccomp.h ] || missing="$missing libseccomp-dev"
	# shellcheck disable=SC2086 # a list of names
	install $missing
	(tags=seccomp && build runc linux "$parts/containerd2" "-s -w" github.com/opencontainers/runc)
}

windows() {
	missing=
	have_wine || missing="$missing wine64"
	command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
	command -v x86_64-w64-mingw32-gcc >/dev/null || missing="$missing gcc-mingw-w64-x86-64"
	command -v x86_64-w64-mingw32-g++ >/dev/null || missing="$missing g++-mingw-w64-x86-64"
	[ -e /usr/include/directx/dxcore.h ] || missing="$missing directx-headers-dev"
	# shellcheck disable=SC2086 # a list of names
	install $missing

	build containerd windows "$parts/windows" "$(flags1 containerd)" $containerd1/cmd/containerd $containerd1/cmd/ctr
	build hcsshim windows "$parts/windows" "-s -w" $runhcs
	doubles
	build aks2 windows "$parts/windows-aks2" "$(flags2 aks2)" $containerd2/cmd/containerd $runhcs
	build containerd2 windows "$parts/windows-newest" "$(flags2 containerd2)" $containerd2/cmd/containerd $containerd2/cmd/ctr
	build hcsshim-new windows "$parts/windows-newest" "-s -w" $runhcs
}

# doubles compiles the stand-ins for Windows' own libraries, and the one that is
# preloaded into Wine. It takes a few seconds, so they are compiled each time.
doubles() {
	say "compiling the test doubles"
	rm -f "$parts/windows"/*.dll # those of earlier versions
	gcc -O2 -Wall -shared -fPIC -s -o "$parts/windows/robust.so" "$root/test/windows/doubles/robust.c"
	for name in vmcompute:-lole32 bcryptprimitives:-ladvapi32 bindfltapi: computenetwork:-lole32 computecore:; do
		libraries=$(echo "${name#*:}" | tr , ' ') name=${name%%:*}
		# shellcheck disable=SC2086 # a list of flags
		x86_64-w64-mingw32-gcc -O2 -Wall -Wno-unused-parameter -shared -s -o "$parts/windows/$name.dll" "$root/test/windows/doubles/$name.c" $libraries
	done
	# Microsoft's headers stand among this system's own, which must not be taken for Windows'.
	for name in dxcore d3d12; do
		x86_64-w64-mingw32-g++ -O2 -Wall -Wno-unused-parameter -shared -static -s -idirafter /usr/include -o "$parts/windows/$name.dll" "$root/test/windows/doubles/$name.cpp" -luuid
	done
}

case $bin in
/*) ;;
*) fail "DIRECTX_NRI_PARTS=$bin is no absolute path" ;;
esac
command -v go >/dev/null || fail "the go command is missing: install Go, https://go.dev/dl"
groups=
for word; do
	case $word in
	--force) force=yes ;;
	linux | helm | cluster | docker | versions | windows) groups="$groups $word" ;;
	all) groups="cluster docker versions windows" ;;
	*) fail "$word is no group of parts: name linux, helm, cluster, docker, versions, windows or all" ;;
	esac
done
for group in ${groups:-linux}; do
	$group
done
say "ready in $parts"
