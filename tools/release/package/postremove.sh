#!/bin/sh
# After a removal. What is the administrator's in /etc/directx-nri stays until dpkg's purge.
set -e
case $1 in
purge) rm -rf /etc/directx-nri /var/lib/directx-nri ;;
remove | 0) ;;
*) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload
