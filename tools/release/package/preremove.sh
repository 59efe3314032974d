#!/bin/sh
# Before a removal, not before an upgrade: dpkg says "upgrade", rpm 1. It fails, and nothing
# is removed, when containers hold GPUs or containerd's configuration cannot be restored.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
/usr/bin/dxctl runtime unconfigure --restart
# containerd loses containers whose shim is gone when it starts. 'unconfigure' has checked which containers hold GPUs.
for dir in /usr/local/bin /usr/bin; do # 'dxctl runtime install' has another default than the package.
	/usr/bin/dxctl runtime uninstall --shim-dir "$dir" --restart --force
done
[ -d /run/systemd/system ] || exit 0
systemctl disable --now directx-nri.service directx-advertiser.service directx-cdi.service
