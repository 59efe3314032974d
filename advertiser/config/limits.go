package config

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxString is the greatest length of a string, in characters, unless maxLength sets another.
const MaxString = 4095

// limits are the keywords in the jsonschema tag of a key. For a list, all limits except the number
// of items are limits of an item. For a mapping without fixed keys, the format is that of a key.
type limits struct {
	required bool
	// shorthand allows a scalar in place of a list with one item, or of a mapping in a list, as the
	// value of its first key. It is in the tag jsonschema_extras, which docs/generate reads.
	shorthand                                                  bool
	enum                                                       []string
	format, pattern, example                                   string
	minLength, maxLength, minimum, maximum, minItems, maxItems int
}

// limitsOf returns the limits in the tag of a field. By default, a string is not empty.
func limitsOf(tag reflect.StructTag) limits {
	l := limits{minLength: 1, maxLength: MaxString, minimum: math.MinInt, maximum: math.MaxInt, maxItems: math.MaxInt}
	l.shorthand = tag.Get("jsonschema_extras") == "shorthand=true"
	texts := map[string]*string{"format": &l.format, "pattern": &l.pattern, "example": &l.example}
	numbers := map[string]*int{
		"minLength": &l.minLength, "maxLength": &l.maxLength, "minItems": &l.minItems, "maxItems": &l.maxItems,
		"minimum": &l.minimum, "maximum": &l.maximum,
	}
	const comma = "\x00"
	for part := range strings.SplitSeq(strings.ReplaceAll(tag.Get("jsonschema"), `\,`, comma), ",") {
		keyword, value, _ := strings.Cut(strings.ReplaceAll(part, comma, ","), "=")
		switch {
		case keyword == "required":
			l.required = true
		case keyword == "enum":
			l.enum = append(l.enum, value)
		case texts[keyword] != nil:
			*texts[keyword] = value
		case numbers[keyword] != nil:
			*numbers[keyword], _ = strconv.Atoi(value)
		}
	}
	return l
}

// values returns the values of the enum except "", nil if there is no enum.
func (l limits) values() []string {
	return slices.DeleteFunc(slices.Clone(l.enum), func(value string) bool { return value == "" })
}

func (l limits) exampleSuffix() string {
	if l.example == "" {
		return ""
	}
	return ", such as " + l.example
}

func (l limits) checkString(text string) error {
	length := utf8.RuneCountInString(text)
	switch {
	case slices.Contains(l.enum, text):
		return nil
	case length == 0 && l.minLength > 0:
		return errNoValue
	case l.enum != nil:
		return fmt.Errorf("%q is not valid: want %s", text, strings.Join(l.values(), ", "))
	case length > l.maxLength:
		return fmt.Errorf("%d characters: use %d or fewer", length, l.maxLength)
	}
	if !regexp.MustCompile(l.pattern).MatchString(text) {
		return fmt.Errorf("%q is not valid: want a string%s", text, l.exampleSuffix())
	}
	return nil
}

func (l limits) checkNumber(n int) error {
	switch {
	case n < l.minimum:
		return fmt.Errorf("%d is out of range: use %d or more", n, l.minimum)
	case n > l.maximum:
		return fmt.Errorf("%d is out of range: use %d or less", n, l.maximum)
	}
	return nil
}

func (l limits) checkItems(n int) error {
	switch {
	case n < l.minItems:
		return errors.New("the list is empty: add an item, or remove the key")
	case n > l.maxItems:
		return fmt.Errorf("%d items: use %d or fewer", n, l.maxItems)
	}
	return nil
}
