package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/directx-nri/directx-nri/internal/cli"
)

// MaxText is the greatest length of a text, in characters, unless maxLength sets another.
const MaxText = 4095

// limits are the keywords of a jsonschema tag, with their values. A text is not empty unless
// minLength is 0.
type limits map[string][]string

func limitsOf(tag string) limits {
	l := limits{}
	const comma = "\x00"
	for part := range strings.SplitSeq(strings.ReplaceAll(tag, `\,`, comma), ",") {
		keyword, value, _ := strings.Cut(strings.ReplaceAll(part, comma, ","), "=")
		l[keyword] = append(l[keyword], value)
	}
	return l
}

// number returns the value of a keyword, or otherwise if there is none.
func (l limits) number(keyword string, otherwise int) int {
	if l[keyword] == nil {
		return otherwise
	}
	n, _ := strconv.Atoi(l[keyword][0])
	return n
}

func (l limits) format() string { return strings.Join(l["format"], "") }

// ofItems returns the limits of the items of a list.
func (l limits) ofItems() limits { return limits{"format": l["format"], "example": l["example"]} }

func (l limits) example() string {
	if l["example"] == nil {
		return ""
	}
	return ", such as " + l["example"][0]
}

// known returns the values that a text can have, nil if it can have others, without "".
func (l limits) known() []string {
	return slices.DeleteFunc(slices.Clone(l["enum"]), func(value string) bool { return value == "" })
}

func (l limits) checkText(text string) error {
	known := l.known()
	length, most := utf8.RuneCountInString(text), l.number("maxLength", MaxText)
	switch {
	case slices.Contains(l["enum"], text):
		return nil
	case length == 0 && l.number("minLength", 1) > 0:
		return errNoValue
	case known != nil:
		return fmt.Errorf("%q is not valid: %s", text, cli.WantOneOf(text, known))
	}
	if length > most {
		return fmt.Errorf("%d characters: use %d or fewer", length, most)
	}
	if l["pattern"] != nil {
		if valid, err := regexp.MatchString(l["pattern"][0], text); err != nil || !valid {
			return errors.Join(fmt.Errorf("%q is not valid: want a text%s", text, l.example()), err)
		}
	}
	return nil
}

func (l limits) checkNumber(n int) error {
	if least := l.number("minimum", n); n < least {
		return fmt.Errorf("%d is out of range: use %d or more", n, least)
	}
	if most := l.number("maximum", n); n > most {
		return fmt.Errorf("%d is out of range: use %d or less", n, most)
	}
	return nil
}

func (l limits) checkItems(n int) error {
	if n < l.number("minItems", 0) {
		return errors.New("the list is empty: add an item, or remove the key")
	}
	if most := l.number("maxItems", n); n > most {
		return fmt.Errorf("%d items: use %d or fewer", n, most)
	}
	return nil
}
