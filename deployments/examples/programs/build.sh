#!/bin/sh
# Builds the example programs for Windows, into out/examples of the repository, with
# Debian's packages gcc-mingw-w64-x86-64, g++-mingw-w64-x86-64 and directx-headers-dev.
#
#   deployments/examples/programs/build.sh [DIRECTORY]
#   deployments/examples/programs/build.sh --kernel   # regenerates montecarlo.h; needs clang-14
#
# Each program has about 50 kB and needs no other files, so they fit into a ConfigMap: see
# the README.
set -eu

here=$(cd "$(dirname "$0")" && pwd)

# quote prints standard input as a C string.
quote() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/\t/\\t/g' -e 's/.*/    "&\\n"/'; }

# NVIDIA's driver compiles PTX, the other drivers OpenCL C. clang compiles OpenCL C to PTX,
# so no CUDA toolkit is needed.
if [ "${1:-}" = --kernel ]; then
	{
		echo '/* Generated from montecarlo.cl by "build.sh --kernel": do not edit. */'
		printf '__attribute__((unused)) static const char montecarlo_cl[] =\n%s;\n' "$(quote <"$here/montecarlo.cl")"
		printf '__attribute__((unused)) static const char montecarlo_ptx[] =\n%s;\n' "$(
			clang-14 -x cl -cl-std=CL1.2 -target nvptx64-nvidia-cuda -O2 -S -o - \
				-Xclang -target-cpu -Xclang sm_50 -Xclang -target-feature -Xclang +ptx60 \
				'-Dget_global_id(i)=__nvvm_read_ptx_sreg_ctaid_x()*__nvvm_read_ptx_sreg_ntid_x()+__nvvm_read_ptx_sreg_tid_x()' \
				"$here/montecarlo.cl" | grep -v '^//' | quote
		)"
	} >"$here/montecarlo.h"
	exit
fi

out=${1:-$here/../../../out/examples}
mkdir -p "$out"
cp "$here/apis.cmd" "$out"
for name in cuda encoders opencl vulkan; do
	x86_64-w64-mingw32-gcc -O2 -Wall -Wextra -Werror -static -s -o "$out/$name.exe" "$here/$name.c" -lole32 -lmfuuid
done
# The DirectX headers must come after mingw's.
x86_64-w64-mingw32-g++ -O2 -Wall -Wextra -Werror -Wno-unused-parameter -static -s -idirafter /usr/include -o "$out/adapters.exe" "$here/adapters.cpp" -luuid
ls -l "$out"
