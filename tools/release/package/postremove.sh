#!/bin/sh
# After a removal. The state in /var/lib/directx-nri and the files in /etc/directx-nri stay, even at dpkg's purge: a
# DaemonSet on this node uses the same directories.
set -e
case $1 in
remove | 0) ;;
*) exit 0 ;;
esac
[ ! -d /run/systemd/system ] || systemctl daemon-reload
