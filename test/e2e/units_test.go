//go:build e2e && linux

package e2e

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// bootUnits boots systemd in namespaces, with a changeable view of this machine's root directory, and runs a script
// there: bash -c bootUnits PROGRAMS UNITS SCRIPT.
const bootUnits = `set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mount -t proc proc proc
mount -t tmpfs tmpfs tmp
mount --rbind /dev dev
mkdir -p old var/lib/kubelet/device-plugins etc/directx-nri
rm -rf etc/systemd/system/* var/lib/directx-nri
cp "$0"/{directx-advertiser,directx-nri,dxctl} usr/local/bin
cp "$1"/*.service etc/systemd/system
cat >etc/systemd/system/docker.service <<END
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=test -s /run/cdi/directx-nri.yaml
END
mount --make-rprivate /
pivot_root . old
umount -l /old
mount --make-rshared /
{ status=0; bash -e -c "$2" || status=$?; systemctl exit $status; } &
exec env -i container=test "PATH=$PATH" /lib/systemd/systemd --unit=basic.target --log-target=null`

// checkUnits uses the units. It fails and prints what is wrong.
const checkUnits = `
until systemctl --quiet is-active basic.target; do sleep 0.1; done 2>/dev/null
await() { # await COMMAND...: it succeeds within 20 seconds
	for _ in {1..200}; do ! "$@" || return 0; sleep 0.1; done
	echo "not within 20 seconds: $*"
	systemctl status --no-pager --lines 5 docker directx-cdi directx-advertiser directx-nri || true
	exit 1
}
ready() {
	test -S /run/directx-nri/readiness.sock -a -S /var/lib/kubelet/device-plugins/directx-display.sock -a -s /var/lib/directx-nri/policy.json
}

systemctl start --no-block directx-cdi docker # before there is a GPU
sleep 2
! systemctl --quiet is-active docker || { echo "Docker does not wait"; exit 1; }
cat >/etc/directx-nri/gpus.yaml <<END
apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices: [{instanceID: 'VMBUS\0', display: true, linux: {deviceNodes: [{path: /dev/null, containerPath: /dev/dxg}]}}]
END
cat >/etc/directx-nri/config.yaml <<END
apiVersion: directx.microsoft.com/v1alpha1
kind: Configuration
inventory: /etc/directx-nri/gpus.yaml
END
systemctl start directx-nri directx-advertiser
await ready
await systemctl --quiet is-active docker

# The kubelet is installed again, and the state is removed.
rm -r /var/lib/kubelet /var/lib/directx-nri /run/directx-nri
mkdir -p /var/lib/kubelet/device-plugins
await ready

for unit in directx-nri directx-advertiser directx-cdi; do
	for dir in /etc /usr /root /home /opt /sys/kernel /proc/sys; do
		! nsenter --target "$(systemctl show --property MainPID --value $unit)" --mount --root touch $dir/file 2>/dev/null ||
			{ echo "$unit can write to $dir"; exit 1; }
	done
done
systemctl stop directx-cdi
test ! -e /run/cdi/directx-nri.yaml || { echo "the specification stays"; exit 1; }
`

// TestUnits uses the units in a systemd of their own.
func TestUnits(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	testutil.NoError(t, err)
	programs := cmp.Or(os.Getenv("DIRECTX_NRI_BIN"), filepath.Join(root, "bin"))
	status, stdout, stderr := call(t, exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child",
		"bash", "-c", bootUnits, programs, filepath.Join(root, "deployments", "systemd"), checkUnits))
	if status != 0 {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}
