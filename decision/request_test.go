package decision

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/ocispec"
)

func TestPresentedTokens(t *testing.T) {
	t.Parallel()
	const displayKey, of16 = "directx.microsoft.com/allocation.display", "0123456789abcdef0123456789abcdef"
	for name, test := range map[string]struct {
		os         ocispec.OS
		env        []string
		annotation string // of the allocation in a pod, "" for a standalone container
		want       []token
	}{
		"nothing":             {ocispec.Linux, []string{"A=1", "DIRECTX_VISIBLE_DEVICES=all", "XDIRECTX_ALLOCATION=1"}, "", nil},
		"sorted, each once":   {ocispec.Linux, []string{"DIRECTX_ALLOCATION_B=2", "DIRECTX_ALLOCATION_A=1", "DIRECTX_ALLOCATION_A=1"}, "", []token{{"DIRECTX_ALLOCATION_A", "1"}, {"DIRECTX_ALLOCATION_B", "2"}}},
		"twice, two values":   {ocispec.Linux, []string{"DIRECTX_ALLOCATION_A=2", "DIRECTX_ALLOCATION_A=1"}, "", []token{{"DIRECTX_ALLOCATION_A", "1"}, {"DIRECTX_ALLOCATION_A", "2"}}},
		"no value":            {ocispec.Linux, []string{"DIRECTX_ALLOCATION"}, "", []token{{"DIRECTX_ALLOCATION", ""}}},
		"other case, Linux":   {ocispec.Linux, []string{"directx_allocation_a=1"}, "", nil},
		"other case, Windows": {ocispec.Windows, []string{"directx_Allocation_a=1"}, "", []token{{"DIRECTX_ALLOCATION_A", "1"}}},
		"letter of another":   {ocispec.Windows, []string{"D\u0131RECTX_ALLOCATION_A=1"}, "", nil},
		"links of a Service":  {ocispec.Linux, []string{"DIRECTX_ALLOCATION_SERVICE_HOST=10.0.0.1", "DIRECTX_ALLOCATION_PORT=tcp://10.0.0.1:80", "DIRECTX_ALLOCATION_A=" + of16}, displayKey, []token{{"DIRECTX_ALLOCATION_A", of16}}},
		"overridden, Linux":   {ocispec.Linux, []string{"DIRECTX_ALLOCATION_DISPLAY=", "DIRECTX_ALLOCATION_COMPUTE="}, displayKey, []token{{"DIRECTX_ALLOCATION_DISPLAY", ""}}},
		"overridden, Windows": {ocispec.Windows, []string{"directx_allocation_Display=1"}, displayKey, []token{{"DIRECTX_ALLOCATION_DISPLAY", "1"}}},
		"another domain's":    {ocispec.Linux, []string{"DIRECTX_ALLOCATION_A_COM_GPU=1"}, "directx.microsoft.com/allocation.a.com.gpu", []token{{"DIRECTX_ALLOCATION_A_COM_GPU", "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Container{OS: test.os, Env: test.env}
			if test.annotation != "" {
				c.Pod, c.Annotations = &Pod{}, map[string]string{test.annotation: "x"}
			}
			if diff := cmp.Diff(test.want, presentedTokens(c), cmp.AllowUnexported(token{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
