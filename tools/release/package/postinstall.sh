#!/bin/sh
# After an installation or an upgrade. The services are enabled by the administrator, and
# restarted when they run: running containers do not notice.
set -e
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
systemctl try-restart directx-nri.service directx-advertiser.service directx-cdi.service
