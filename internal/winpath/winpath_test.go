package winpath

import (
	"strings"
	"testing"
)

func TestClean(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{``, `.`},
		{`a/b\c`, `a\b\c`},
		{`a\.\b\..\c`, `a\c`},
		{`a\..`, `.`},
		{`..\..\a\..`, `..\..`},
		{`c:`, `C:.`},
		{`c:..\a`, `C:..\a`},
		{`c:\`, `C:\`},
		{`c:/windows/System32/`, `C:\windows\System32`},
		{`C:\a\..\..\..`, `C:\`},
		{`C:\a. \b.`, `C:\a. \b.`},
		{`\`, `\`},
		{`//server/share/`, `\\server\share`},
		{`\\?\c:\..`, `\\?`},
		{`a\..\c:\b`, `.\c:\b`}, // It must not become a drive.
	}
	for _, tc := range tests {
		if got := Clean(tc.in); got != tc.want {
			t.Errorf("Clean(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   []string
		want string
	}{
		{nil, ``},
		{[]string{``, ``}, ``},
		{[]string{`C:\Windows`, `System32`, `nvcuda.dll`}, `C:\Windows\System32\nvcuda.dll`},
		{[]string{`c:/Windows/`, ``, `/System32/`}, `C:\Windows\System32`},
		{[]string{`C:\a`, `..\b`}, `C:\b`},
		{[]string{`C:\a`, `D:\b`}, `C:\a\D:\b`},
		{[]string{`\`, `\\server\share`}, `\server\share`},
	}
	for _, tc := range tests {
		if got := Join(tc.in...); got != tc.want {
			t.Errorf("Join(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestBaseAndDir(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, base, dir string }{
		{``, `.`, `.`},
		{`a`, `a`, `.`},
		{`a\b/`, `b`, `a`},
		{`C:\`, `\`, `C:\`},
		{`C:\a\b.dll`, `b.dll`, `C:\a`},
		{`C:`, `.`, `C:.`},
	}
	for _, tc := range tests {
		if got := Base(tc.in); got != tc.base {
			t.Errorf("Base(%q) = %q, want %q", tc.in, got, tc.base)
		}
		if got := Dir(tc.in); got != tc.dir {
			t.Errorf("Dir(%q) = %q, want %q", tc.in, got, tc.dir)
		}
	}
}

func TestKindsOfPaths(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		has     func(string) bool
		yes, no []string
	}{
		"IsAbs": {
			IsAbs,
			[]string{`C:\`, `c:/a`},
			[]string{``, `.`, `a`, `C:`, `C:a`, `1:\a`, `\`, `\a`, `/a`, `\\server\share\a`, `//server/share`, `\\?\C:\a`, `\\.\pipe\x`, `\??\C:\a`},
		},
		"IsLocal": {
			IsLocal,
			[]string{`a`, `.`, `a\b/c`, `a\..\b`, `a\..`, `nvcuda64.dll`, `.hidden`, `NULL`, `COM10`, `console.dll`, `COMx`, `ä\ß.dll`},
			[]string{
				``, `\`, `/a`, `\a`, `\\server\share`, `C:`, `C:a`, `C:\a`, `..`, `a\..\..`, `../a`, `a\..\..\a`,
				`a:stream`, `a\b:c`, `\\?\C:\a`, `...`, `.. `, `a.`, `a `, `b\a. .`, `a.\b`, `. .\a`, `a\ \b`, `nul`, `NUL.txt`, `a\Con `, `aux .c`, `com1`, `LPT³.x`, `conin$`,
				"a\x00", "a\nb", `a*`, `a?`, `a|b`, `"a"`, `<a>`,
			},
		},
		"IsLocalGlob": {IsLocalGlob, []string{`*.dll`, `x86\?.exe`}, []string{`..\*.dll`, `C:\*.dll`, `*:a`, `nul`, ``, `\*`}},
		"LooksShort": {
			LooksShort, []string{`C:\PROGRA~1\x`, `PROGRA~1.DLL`, `a~9`, `long name~12.dll`},
			[]string{``, `~`, `a~`, `a~b`, `C:\Program Files\x~.dll`},
		},
	} {
		for _, p := range test.yes {
			if !test.has(p) {
				t.Errorf("%s(%q) = false", name, p)
			}
		}
		for _, p := range test.no {
			if test.has(p) {
				t.Errorf("%s(%q) = true", name, p)
			}
		}
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	same := [][]string{
		{`C:\Windows\System32\nvcuda.dll`, `c:/windows/SYSTEM32/NVCUDA.DLL`, `C:\Windows\.\System32\x\..\nvcuda.dll`, `C:\Windows.\System32 \nvcuda.dll. .`},
		{`C:\`, `c:/`, `C:\..`, `C:\...`},
		{`C:\a`, `C:\a\`, `C:\a\...`, `C:\a\. .`, `C:\a\.. `, `C:\A...`},
		{`\\Server\Share\a`, `//server/share/A`},
		{`a`, `A`, `.\a.`},
		{``, `.`, `a\..`, `...`},
		{`Ä`, `ä`},
		{`..`, `..\`, `a\..\..`},
	}
	for i, group := range same {
		for _, p := range group {
			if !Equal(group[0], p) {
				t.Errorf("Equal(%q, %q) = false; keys %q and %q", group[0], p, Key(group[0]), Key(p))
			}
		}
		for j, other := range same {
			if i != j && Equal(group[0], other[0]) {
				t.Errorf("Equal(%q, %q) = true", group[0], other[0])
			}
		}
	}
	for _, pair := range [][2]string{
		{`C:\a`, `D:\a`}, {`C:a`, `C:\a`}, {`C:\a`, `C:\a b`}, {`C:\.a`, `C:\a`}, {`C:\a`, `\\?\C:\a`},
		{`nvıdia`, `nvidia`}, {`C:\ a`, `C:\a`}, {`..`, `.`}, {`\a`, `a`}, {`\\server\share`, `\server\share`}, {`C:`, `C:\`},
	} {
		if Equal(pair[0], pair[1]) {
			t.Errorf("Equal(%q, %q) = true; key %q", pair[0], pair[1], Key(pair[0]))
		}
	}
}

// FuzzPath checks invariants of all paths.
func FuzzPath(f *testing.F) {
	seeds := []string{
		``, `.`, `..\..`, `c:a`, `C:\Windows\..\x`, `\\server\share\..\x`, `\\?\c:\a\..`, `\\?\UNC\s\h\x`, `\??\c:`, `\a\..\??\x`,
		`a\..\c:\b`, `nvcuda64.dll`, `sub/./x.dll`, `\\\a`, `...`, `a. \b .`, `NUL`, "\xff", `\\?\UNC`, `\\?`, `\\.\pipe\x`, `//`,
	}
	for _, s := range seeds {
		f.Add(s, `C:\base`)
		f.Add(`x\y.dll`, s)
	}
	f.Fuzz(func(t *testing.T, p, base string) {
		c := Clean(p)
		if again := Clean(c); again != c {
			t.Errorf("Clean(%q) = %q, then %q", p, c, again)
		}
		if strings.Contains(c, "/") {
			t.Errorf("Clean(%q) = %q has a slash", p, c)
		}
		if IsAbs(p) != IsAbs(c) {
			t.Errorf("IsAbs(%q) = %v, of the cleaned %q %v", p, IsAbs(p), c, IsAbs(c))
		}
		if !Equal(p, c) || !Equal(p, strings.ToUpper(p)) && isASCII(p) {
			t.Errorf("%q, its clean form %q and its upper case are not equal", p, c)
		}
		if dir := Dir(p); dir != Clean(dir) {
			t.Errorf("Dir(%q) = %q is not clean", p, dir)
		}
		if IsLocal(p) && IsAbs(base) {
			joined := Join(base, p)
			root, below := strings.TrimRight(Clean(base), `\`), joined+`\`
			if !strings.HasPrefix(below, root+`\`) {
				t.Errorf("Join(%q, %q) = %q is not below the first", base, p, joined)
			}
		}
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

func TestEqualOrBelow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		dir, path string
		want      bool
	}{
		{`C:\a`, `C:\a\b`, true},
		{`C:\a`, `c:\A\b`, true},
		{`C:\a\`, `C:\a`, true},
		{`C:\a`, `C:\ab`, false},
		{`C:\a`, `C:\a\..\b`, false},
		{`C:\`, `C:\a`, true},
		{`C:\a`, `\\?\C:\a\b`, false},
		{`C:\a`, `\\server\a\b`, false},
		{`C:\a\b`, `C:\a`, false},
	} {
		if got := EqualOrBelow(test.dir, test.path); got != test.want {
			t.Errorf("%q within %q: %t", test.path, test.dir, got)
		}
	}
}
