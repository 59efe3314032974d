package allocation

import "testing"

func TestReplicaID(t *testing.T) {
	t.Parallel()
	const pnp = `PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\4&1CFCA9AB&0&00D8`
	for _, test := range []struct {
		id, instance string
		number       int
		ok           bool
	}{
		{id: pnp + "::0", instance: pnp, number: 0, ok: true},
		{id: pnp + "::1023", instance: pnp, number: 1023, ok: true},
		{id: "a::b::7", instance: "a::b", number: 7, ok: true},
		{id: ":::5", instance: ":", number: 5, ok: true},
		{id: ""},
		{id: pnp},
		{id: pnp + "::"},
		{id: pnp + "::-1"},
		{id: pnp + "::01"},
		{id: pnp + "::0x1"},
		{id: pnp + "::١"},
		{id: pnp + "::18446744073709551616"},
	} {
		instance, number, ok := ParseReplicaID(test.id)
		if instance != test.instance || number != test.number || ok != test.ok || ok && ReplicaID(instance, number) != test.id {
			t.Errorf("%q: got %q, %d, %v", test.id, instance, number, ok)
		}
	}
}
