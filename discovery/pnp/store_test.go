package pnp

import (
	"errors"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func TestDriverStore(t *testing.T) {
	t.Parallel()
	const repo = `C:\Windows\System32\DriverStore\FileRepository\`
	const a, b = repo + "nv.inf_amd64_a", repo + "nv.inf_amd64_b"
	const guestGPU, hostStore = `pci\ven_1414&dev_008e&subsys_00000000&rev_00\5&1`, `C:\Windows\System32\HostDriverStore\FileRepository\nv.inf_amd64_c`
	failed := errors.New("SetupGetInfDriverStoreLocation: not\nimplemented")
	driver := func(texts ...string) []win32.RegistryValue {
		return []win32.RegistryValue{multi("", "UserModeDriverName", texts...)}
	}
	for name, test := range map[string]struct {
		p    Properties
		want string
		note string // "" for none
		err  string
	}{
		"both agree, case differs": {p: Properties{PackageDir: a, Values: driver(strings.ToUpper(a) + `\U.DLL`)}, want: a},
		"both agree, subdirectory": {p: Properties{PackageDir: a, Values: driver(a + `\B0261\u.dll`)}, want: a},
		"INF alone":                {p: Properties{PackageDir: a + `\`}, want: a},
		"INF, driver elsewhere":    {p: Properties{PackageDir: a, Values: driver("<>", `C:\Windows\System32\u.dll`)}, want: a},
		"INF among the driver's":   {p: Properties{PackageDir: a, Values: driver(b+`\u.dll`, a+`\u.dll`)}, want: a},
		"driver alone":             {p: Properties{PackageDirErr: failed, Values: driver(a + `\u.dll`)}, want: a, note: "not implemented"},
		"REG_SZ":                   {p: Properties{Values: []win32.RegistryValue{{Name: "usermodedrivername", Type: regString, Data: utf16le(a + `\u.dll`)}}}, want: a, note: "unknown"},
		"value of a subkey":        {p: Properties{PackageDir: a, Values: []win32.RegistryValue{multi("CopyToVmOverwrite", "UserModeDriverName", b+`\u.dll`)}}, want: a},
		"they differ":              {p: Properties{PackageDir: a, Values: driver(b + `\u.dll`)}, want: b, note: "its INF is in " + strings.ReplaceAll(`"`+a, `\`, `\\`)},
		"guest of Hyper-V": {
			p:    Properties{InstanceID: guestGPU, PackageDir: repo + "vrd.inf_amd64_1", Values: driver(hostStore + `\nvldumdx.dll`)},
			want: hostStore, note: "its INF is in",
		},
		"guest of Hyper-V, no driver": {p: Properties{InstanceID: guestGPU, PackageDir: repo + "vrd.inf_amd64_1"}, err: "which directory of HostDriverStore"},
		"neither":                     {p: Properties{PackageDirErr: failed}, err: "not implemented"},
		"INF in a relative directory": {p: Properties{PackageDir: `DriverStore\x`}, err: "reinstall"},
		"driver on a share":           {p: Properties{Values: driver(`\\server\c$\Windows\System32\DriverStore\FileRepository\x\u.dll`)}, err: "reinstall"},
		"driver in no repository":     {p: Properties{Values: driver(`C:\DriverStore\Temp\x\u.dll`, `C:\Temp\FileRepository\x\u.dll`)}, err: "reinstall"},
		"driver that goes up":         {p: Properties{Values: driver(repo + `x\..\u.dll`)}, err: "reinstall"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, note, err := driverStore(test.p)
			if got != test.want || !strings.Contains(note, test.note) || (note == "") != (test.note == "") {
				t.Errorf("%q, note %q; want %q, note with %q", got, note, test.want, test.note)
			}
			testutil.CheckError(t, "find", err, test.err)
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line", err)
			}
		})
	}
}
