package ocispec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// object is a JSON object whose values stay as they came in, in their order,
// so that what we do not know passes through an edit unharmed.
type object struct {
	members []member
}

type member struct {
	key   string
	value json.RawMessage
}

func parseObject(data []byte) (*object, error) {
	o := &object{}
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil {
		return nil, err
	} else if start != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		m := member{key: fmt.Sprint(key)}
		if err := d.Decode(&m.value); err != nil {
			return nil, err
		}
		o.members = append(o.members, m)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the end of the JSON object")
	}
	return o, nil
}

// find returns the position of key, -1 when it is not there. Go's decoder,
// which the runtimes use, matches keys without regard to case and lets the
// last one win, so that a key which stands there twice, or in another
// spelling, would be read by them in a way that we cannot edit safely.
func (o *object) find(key string) (int, error) {
	found := -1
	for i, m := range o.members {
		if !strings.EqualFold(m.key, key) {
			continue
		}
		if found >= 0 || m.key != key {
			return 0, fmt.Errorf("%q is there twice or in another spelling", key)
		}
		found = i
	}
	return found, nil
}

// get decodes the value of key into v, which stays as it is when there is none
// or null.
func (o *object) get(key string, v any) error {
	i, err := o.find(key)
	if err != nil || i < 0 {
		return err
	}
	if err := json.Unmarshal(o.members[i].value, v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// child returns the object at key, an empty one when there is none or null.
func (o *object) child(key string) (*object, error) {
	var raw json.RawMessage
	if err := o.get(key, &raw); err != nil {
		return nil, err
	}
	if len(raw) == 0 || string(raw) == "null" {
		return &object{}, nil
	}
	c, err := parseObject(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return c, nil
}

// set puts v in the place of key's value, or at the end.
func (o *object) set(key string, v any) error {
	i, err := o.find(key)
	if err != nil {
		return err
	}
	raw, err := marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if i < 0 {
		o.members = append(o.members, member{key: key, value: raw})
		return nil
	}
	o.members[i].value = raw
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (o *object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o.members {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := marshal(m.key)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshal is json.Marshal without the escapes for HTML: a path with "&" in it
// stays readable.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
