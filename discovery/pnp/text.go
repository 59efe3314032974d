package pnp

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/directx-nri/directx-nri/internal/win32"
)

// The REG_ types that hold text.
const (
	regString      = 1 // REG_SZ
	regMultiString = 7 // REG_MULTI_SZ
)

var errNotText = errors.New("is not valid UTF-16")

// stringsOf returns the strings of a REG_SZ or REG_MULTI_SZ value.
func stringsOf(v win32.RegistryValue) ([]string, error) {
	if v.Type != regString && v.Type != regMultiString {
		return nil, fmt.Errorf("has registry type %d, want REG_SZ (%d) or REG_MULTI_SZ (%d)", v.Type, regString, regMultiString)
	}
	list, err := win32.Strings(v.Data)
	if err != nil {
		return nil, fmt.Errorf("has %w", err)
	}
	if v.Type == regString {
		list = list[:min(len(list), 1)]
	}
	// A replacement character would name another file.
	if strings.ContainsRune(strings.Join(list, ""), utf8.RuneError) {
		return nil, errNotText
	}
	return list, nil
}

// quote quotes text of unknown content, and shortens what is longer than a path.
func quote(text string) string { return fmt.Sprintf("%.260q", text) }
