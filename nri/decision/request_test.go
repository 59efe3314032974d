package decision

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"directx-nri/ocispec"
)

func TestTokenEnv(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		os   ocispec.OS
		env  []string
		want []token
	}{
		"nothing":             {ocispec.Linux, []string{"A=1", "DIRECTX_VISIBLE_DEVICES=all", "XDIRECTX_ALLOCATION=1"}, nil},
		"sorted, each once":   {ocispec.Linux, []string{"DIRECTX_ALLOCATION_B=2", "DIRECTX_ALLOCATION_A=1", "DIRECTX_ALLOCATION_A=1"}, []token{{"DIRECTX_ALLOCATION_A", "1"}, {"DIRECTX_ALLOCATION_B", "2"}}},
		"twice, two values":   {ocispec.Linux, []string{"DIRECTX_ALLOCATION_A=2", "DIRECTX_ALLOCATION_A=1"}, []token{{"DIRECTX_ALLOCATION_A", "1"}, {"DIRECTX_ALLOCATION_A", "2"}}},
		"no value":            {ocispec.Linux, []string{"DIRECTX_ALLOCATION"}, []token{{"DIRECTX_ALLOCATION", ""}}},
		"other case, Linux":   {ocispec.Linux, []string{"directx_allocation_a=1"}, nil},
		"other case, Windows": {ocispec.Windows, []string{"directx_Allocation_a=1"}, []token{{"DIRECTX_ALLOCATION_A", "1"}}},
		"letter of another":   {ocispec.Windows, []string{"D\u0131RECTX_ALLOCATION_A=1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, tokenEnv(test.os, test.env), cmp.AllowUnexported(token{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
