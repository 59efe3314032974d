// Package quantity reads amounts of memory as people write them.
package quantity

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// ParseBytes returns how many bytes text is: a whole number, which may have a
// unit behind it, Ki, Mi, Gi or Ti (1,024 each of the one before), with or
// without a B: 8Gi, 8GiB. The error says what to write.
func ParseBytes(text string) (uint64, error) {
	digits, shift := strings.TrimSuffix(text, "iB"), 0
	if len(digits) != len(text) {
		digits += "i"
	}
	for _, unit := range []struct {
		suffix string
		shift  int
	}{{"Ki", 10}, {"Mi", 20}, {"Gi", 30}, {"Ti", 40}} {
		if number, found := strings.CutSuffix(digits, unit.suffix); found {
			digits, shift = number, unit.shift
			break
		}
	}
	n, err := ParseDecimal(digits)
	if err != nil || bits.Len64(n)+shift > 64 {
		return 0, fmt.Errorf("%q is not an amount of memory; write bytes, or a whole number with Ki, Mi, Gi or Ti, less than 2^64 bytes in all", shorten(text))
	}
	return n << shift, nil
}

// ParseDecimal reads a decimal number in its one plain form: no sign, no leading
// zeros, which are octal elsewhere, and no separators.
func ParseDecimal(text string) (uint64, error) {
	if len(text) > 1 && text[0] == '0' || strings.HasPrefix(text, "+") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(text, 10, 64)
}

// FormatBytes returns n in the largest unit that it is a whole number of.
func FormatBytes(n uint64) string {
	unit := ""
	for _, next := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, next
	}
	return strconv.FormatUint(n, 10) + unit
}

func shorten(text string) string {
	const most = 80
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
