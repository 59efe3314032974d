package access

import (
	"testing"

	"golang.org/x/sys/windows"
)

// TestReplaceAccess has rights that Wine cannot represent: those of all users for C:\, C:\ProgramData and D:\, and
// others.
func TestReplaceAccess(t *testing.T) {
	t.Parallel()
	for sddl, trusted := range map[string][2]bool{ // for a root, and for a directory in it
		"(A;;LC;;;AU)(A;OICIIO;SDGXGWGR;;;AU)(A;CI;LC;;;BU)(A;CIIO;DC;;;BU)": {true, true}, "(A;OICI;0x1301bf;;;AU)": {true, false},
		"(A;OICIIO;GA;;;CO)(A;OICI;0x1200a9;;;BU)(A;CI;DCLCRPCR;;;BU)": {true, true},
		"(A;;FA;;;WD)": {}, "(A;;DT;;;BU)": {}, "(A;;WD;;;BU)": {},
	} {
		descriptor, err := windows.SecurityDescriptorFromString("O:BAD:" + sddl)
		for i, dir := range []string{`C:\`, `C:\models`} {
			if sid, listErr := findUntrusted(descriptor, replaceAccess(dir)); err != nil || listErr != nil || (sid == "") != trusted[i] {
				t.Errorf("%s, %s: %q, %v, %v", sddl, dir, sid, err, listErr)
			}
		}
	}
}
