package allocation

import (
	"strings"
	"testing"
)

func TestReplicaID(t *testing.T) {
	t.Parallel()
	const pnp = `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00D8`
	key := GPUKey(pnp)
	if GPUKey(strings.ToLower(pnp)) != key || GPUKey(pnp+"0") == key {
		t.Errorf("the key %q is not that of one GPU in any spelling", key)
	}
	for _, number := range []int{0, 1023} {
		id := ReplicaID(key, number)
		if gotKey, got, ok := ParseReplicaID(id); gotKey != key || got != number || !ok || len(id) > 17 {
			t.Errorf("%q: got %q, %d, %t", id, gotKey, got, ok)
		}
	}
	for _, bad := range []string{"", "a", "a-", "a--1", "a-01", "a-0x1", "a-+1", "a-1-1", "a-١", "a-18446744073709551616"} {
		if _, _, ok := ParseReplicaID(bad); ok {
			t.Errorf("%q is accepted", bad)
		}
	}
}
