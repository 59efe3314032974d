#!/bin/sh
# Before a removal, not before an upgrade: dpkg says "upgrade", rpm 1.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
/usr/bin/dxctl runtime uninstall # The copy in /usr/local/bin that 'dxctl runtime install' made.
[ -d /run/systemd/system ] || exit 0
systemctl disable --now directx-nri.service directx-advertiser.service directx-cdi.service
