#!/usr/bin/env bash
# Runs the suite for Windows nodes under Wine, as root:
#
#   test/windows/wine.sh [FLAG...]   with flags of go test, such as -run TestChain
#   test/windows/wine.sh run PROGRAM [ARGUMENT...]
#
# The first builds the programs that the tests start, and runs $GOTEST for Windows, which
# runs each test binary by the second: in a Wine prefix of its own, with the doubles.
# make build-windows-amd64 and test/parts/build.sh windows come first.
#
# DIRECTX_NRI_PARTS and DIRECTX_NRI_WINDOWS_BIN name other places for the stock programs and
# the product's.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
PATH=$PATH:/usr/lib/wine # Debian's package wine64 has its programs there.

# run runs a Windows program in a new prefix. The server of the prefix ends with it, and all
# processes of the prefix with the server.
run() {
	local dir left status=0
	dir=$(mktemp -d "${DIRECTX_NRI_E2E_TMP:-/tmp}/dxw.XXXXXX")
	export WINEPREFIX=$dir/prefix WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml=d;computecore,d3d12=n" HOME=$dir
	export LC_ALL=C.UTF-8 # for file names
	# Go preempts a thread by suspending it. If that meets the end of the process, Wine 8
	# deadlocks in NtTerminateProcess.
	export GODEBUG=asyncpreemptoff=1
	mkdir "$WINEPREFIX"
	trap 'end' EXIT
	trap 'exit 1' INT TERM HUP
	# It returns when the server listens; a program that comes before starts a second server.
	wineserver64 --persistent
	export LD_PRELOAD=$DIRECTX_NRI_WINE_PARTS/windows/robust.so # Without it some programs hang when they end.
	# About one set-up in 200 on a busy machine failed to start reg.exe: Wine says why.
	WINEDEBUG=fixme-all,warn+module,warn+process setup >"$dir/setup.log" 2>&1 || { cat "$dir/setup.log"; exit 1; }
	wine64 "$@" || status=$?
	for _ in {1..100}; do # Processes that are ending may need a moment.
		left=$(programs)
		[ -n "$left" ] || exit $status
		sleep 0.1
	done
	echo "wine.sh: left behind:"$'\n'"$left" >&2
	exit 1
}

# processes prints the directories of the prefix's processes.
processes() { grep -lzsx "WINEPREFIX=$WINEPREFIX" /proc/[0-9]*/environ | xargs -r dirname | grep -vx "/proc/$$" || :; }

# programs prints the command lines of the prefix's processes that are not Wine's own.
programs() {
	local process
	for process in $(processes); do
		tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -i '\.exe' | grep -vi '^c:.windows' || :
	done
}

# setup sets the prefix up. It runs where set -e has no effect.
setup() {
	local version='HKLM\Software\Microsoft\Windows NT\CurrentVersion'
	# This command sets the prefix up, which can undo what another one sets at the same time.
	wine64 reg add 'HKCU\Software\Wine' &&
		# Windows Server 2022 in place of Windows 7.
		wine64 reg add "$version" /v CurrentVersion /d 10.0 /f &&
		wine64 reg add "$version" /v CurrentBuildNumber /d 20348 /f &&
		cp --remove-destination "$DIRECTX_NRI_WINE_PARTS"/windows/*.dll "$WINEPREFIX/drive_c/windows/system32/"
}

# end ends the prefix.
end() {
	unset LD_PRELOAD
	wineserver64 --kill || :
	export -n WINEPREFIX
	# A process that was just starting does not notice the end of its server.
	processes | cut -d/ -f3 | xargs -r kill -KILL 2>/dev/null || :
	for _ in {1..100}; do
		rm -rf "$dir" 2>/dev/null && return # Processes that are ending may still write.
		sleep 0.1
	done
}

# overlay writes a build overlay whose os.RemoveAll, and with it t.TempDir, works under
# Wine 8, and prints its file. Wine answers the newer of Go's two ways with
# STATUS_NOT_IMPLEMENTED, which Go treats as a failure. The overlay sets the variable with
# which Go's own tests select the older way.
overlay() {
	local file
	file=$(go env GOROOT)/src/internal/syscall/windows/at_windows.go
	sed 's/^var TestDeleteatFallback bool$/var TestDeleteatFallback = true/' "$file" >"$build/at_windows.go"
	! cmp -s "$file" "$build/at_windows.go" || { echo "wine.sh: find how to make os.RemoveAll of this Go work under Wine" >&2; exit 1; }
	printf '{"Replace": {"%s": "%s"}}' "$file" "$build/at_windows.go" >"$build/overlay.json"
	echo "$build/overlay.json"
}

# image writes an image for ctr into a directory, and the digest of its layer. Its command is
# one that the double of the Host Compute Service does not end. Its environment and labels have
# the ID of an allocation (attacks_test.go).
image() {
	local dir=$build/image id=0123456789abcdef0123456789abcdef digest
	mkdir -p "$dir/Files"
	tar -C "$dir" -cf "$dir/layer.tar" Files
	digest=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
	echo "$digest" >"$1/image.sha256"
	printf '{"architecture":"amd64","os":"windows","config":{"Cmd":["forever"],"Env":["DIRECTX_ALLOCATION_DISPLAY=%s"],"Labels":{"directx.microsoft.com/allocation.display":"%s"}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' $id $id "$digest" >"$dir/config.json"
	echo '[{"Config":"config.json","RepoTags":["localhost/base:1"],"Layers":["layer.tar"]}]' >"$dir/manifest.json"
	tar -C "$dir" -cf "$1/image.tar" config.json layer.tar manifest.json
}

# place links files into a directory, or copies them: place FILE... DIRECTORY.
place() { cp -l "$@" 2>/dev/null || cp "$@"; }

# build builds the programs of the suite for Windows, and adds the others.
build() {
	local parts=$DIRECTX_NRI_WINE_PARTS to=$DIRECTX_NRI_WINE_PROGRAMS package release
	mkdir -p "$to"/{newest,aks2,units}
	place "$parts"/windows/*.exe "$bin"/{dxctl,containerd-shim-directx-v1,directx-advertiser}.exe "$to"
	for release in newest:. aks2:newest; do # Missing programs are those of another release.
		place "$parts/windows-${release%:*}"/*.exe "$to/${release%:*}"
		place --no-clobber "$to/${release#*:}"/{ctr,containerd-shim-runhcs-v1}.exe "$to/${release%:*}"
	done
	"$root/deployments/examples/programs/build.sh" "$to/examples" >/dev/null
	image "$to"
	go build -trimpath -buildvcs=false -o "$to/" ./test/windows/launcher
	# All packages with code or tests for Windows alone, and some that handle Windows' paths
	# and documents.
	for package in ocispec/gpuedits ocispec decision internal/policy internal/winpath cmd/dxctl $(find advertiser cmd decision discovery internal nri ocispec shim -name '*_windows.go' -o -name '*_windows_test.go' | xargs -n1 dirname | sort -u); do
		go test -c -tags e2e -trimpath -vet=off -overlay "$overlay" -o "$to/units/${package//\//.}.exe" "./$package"
	done
}

if [ "${1:-}" = run ]; then
	shift
	run "$@"
fi
[ "$(id -u)" = 0 ] || { echo "wine.sh: it needs root, as containerd does: run it with sudo" >&2; exit 1; }
cd "$root"
bin=${DIRECTX_NRI_WINDOWS_BIN:-$root/bin/windows-amd64}
build=$(mktemp -d "${DIRECTX_NRI_E2E_TMP:-/tmp}/dxw-build.XXXXXX")
trap 'rm -rf "$build"' EXIT
export DIRECTX_NRI_WINE_PARTS DIRECTX_NRI_WINE_PROGRAMS=$build/programs GOOS=windows GOARCH=amd64 CGO_ENABLED=0
DIRECTX_NRI_WINE_PARTS=$(dirname "${DIRECTX_NRI_PARTS:-$root/.parts/bin}")
overlay=$(overlay)
build
# shellcheck disable=SC2086 # a command with arguments
${GOTEST:-go test} -exec "$root/test/windows/wine.sh run" -overlay "$overlay" -tags e2e,wine -count=1 -timeout 40m -parallel 8 "$@" ./test/windows
